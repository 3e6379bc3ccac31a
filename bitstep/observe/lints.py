"""What changes a program and leaves no row in a trace, noted while it runs; nothing is changed.

1. `watch` notes dispatch modes that are entered, hooks that are added once something was compiled,
   replays of CUDA graphs, and whether the program chose its number of threads.
2. `found` looks at the end: full backward hooks, zero-bubble schedules, parameters that are not
   aligned, modules whose kernels no dispatcher sees.

>>> lints = Lints()
>>> lints.watch()  # doctest: +SKIP
>>> sorted(lints.found(recorder))  # doctest: +SKIP
['compiled', 'full backward hooks', 'graph replays', 'late hooks', 'modes', 'outside', ...]
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from bitstep.observe.recorder import Recorder

ALIGNMENT: Final = 64
"""Bytes: what the allocator of torch gives, and what kernels choose by."""
OUTSIDE: Final = (
    "transformer_engine", "flash_attn", "flash_attn_interface", "deep_ep", "cupy", "jax",
    "tensorflow", "apex", "fla", "mamba_ssm", "causal_conv1d", "xformers", "deepspeed",
)  # fmt: skip
"""Packages that bring kernels of their own, some of which are called past the dispatcher."""
CONSTRUCTION: Final = ("transformer_engine", "megatron.core")
"""Packages whose modules read flags when they are made."""
_OF_TORCH: Final = ("torch._", "torch.fx", "torch.utils.checkpoint", "torch.distributed", "bitstep")
"""Whose modes come and go by themselves. Not torch.utils, whose modes users enter."""
_HOOKS: Final = (
    "register_forward_pre_hook", "register_forward_hook", "register_full_backward_hook",
    "register_full_backward_pre_hook",
)  # fmt: skip
_SCHEDULES: Final = "torch.distributed.pipelining.schedules"
_MOST: Final = 8
"""Names of each kind that are kept."""


class Lints:
    """What one process did."""

    def __init__(self) -> None:
        self._modes: dict[str, bool] = {}
        self._late: dict[str, None] = {}
        self._replays = 0
        self._chose_threads = False

    def watch(self) -> None:
        """Wrap what tells of it; each wrapper calls on."""
        self._before(TorchDispatchMode, "__enter__", self._entered)
        for name in _HOOKS:
            self._before(nn.Module, name, self._hooked)
        if torch.cuda.is_available():
            self._before(torch.cuda.CUDAGraph, "replay", self._replayed)
        self._before(torch, "set_num_threads", self._set_threads)

    def found(self, recorder: Recorder) -> dict[str, Any]:
        """All of it, as plain data."""
        roots = list(recorder.engine().names.roots())
        return {
            "modes": [name for name, ignores in self._modes.items() if not ignores][:_MOST],
            "compiled": _compiled(),
            "late hooks": list(self._late)[:_MOST],
            "graph replays": self._replays,
            "chose threads": self._chose_threads,
            "full backward hooks": list(_full_backward_hooks(roots))[:_MOST],
            "zero bubble": _zero_bubble(),
            "unaligned": list(_unaligned(roots))[:_MOST],
            "outside": [name for name in OUTSIDE if name in sys.modules],
            "triton": _triton_kernels()[:_MOST],
            "construction": [name for name in CONSTRUCTION if name in sys.modules],
        }

    @staticmethod
    def _before(owner: Any, name: str, tell: Callable[[Any], None]) -> None:
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            tell(args[0] if args else None)
            return inner(*args, **kwargs)

        setattr(owner, name, call)

    def _entered(self, mode: Any) -> None:
        kind = type(mode)
        home = str(kind.__module__)
        if not home.startswith(_OF_TORCH):
            ignores = bool(getattr(kind, "ignore_compile_internals", bool)())
            self._modes[f"{home}.{kind.__qualname__}"] = ignores

    def _hooked(self, module: Any) -> None:
        if _compiled():
            self._late[type(module).__name__] = None

    def _set_threads(self, number: Any) -> None:
        self._chose_threads = True

    def _replayed(self, graph: Any) -> None:
        self._replays += 1


def _compiled() -> int:
    """Graphs that torch.compile made so far. Looks only, and imports nothing."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    return int(counters["stats"].get("unique_graphs", 0)) if counters is not None else 0


def _full_backward_hooks(roots: list[tuple[str, nn.Module]]) -> Iterator[str]:
    for name, root in roots:
        for path, module in root.named_modules():
            if module._backward_hooks and module._is_full_backward_hook:
                yield f"{name}.{path}" if path else name


def _zero_bubble() -> list[str]:
    """Schedules that take backward apart, of those that live."""
    if _SCHEDULES not in sys.modules:
        return []
    names = {type(found).__name__ for found in gc.get_objects()
             if str(type(found).__module__) == _SCHEDULES}  # fmt: skip
    return sorted(name for name in names if "ZeroBubble" in name or "ZBV" in name)


def _triton_kernels() -> list[str]:
    """Kernels that the program wrote for Triton, of those that live: no dispatcher sees them."""
    kind = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
    if kind is None:
        return []
    kernels = [found for found in gc.get_objects() if type(found) is kind]
    homes = {str(getattr(one, "__name__", "")): str(one.__module__) for one in kernels}
    libraries = ("torch.", "triton.", "bitstep.")
    return sorted(name for name, home in homes.items() if not f"{home}.".startswith(libraries))


def _unaligned(roots: list[tuple[str, nn.Module]]) -> Iterator[str]:
    """Parameters that do not begin where the allocator begins: slices, mapped files."""
    for name, root in roots:
        for path, parameter in root.named_parameters():
            inner = getattr(parameter, "_local_tensor", parameter)
            is_plain = type(inner) in (torch.Tensor, nn.Parameter) and inner.device.type == "cpu"
            if is_plain and inner.layout is torch.strided and inner.data_ptr() % ALIGNMENT:
                yield f"{name}.{path}"
