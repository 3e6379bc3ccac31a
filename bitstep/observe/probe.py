"""The bare arm of the inertness check: what a program's state is after each step, and no more.

1. One global optimizer hook; after each step the root of parameters and moments is taken.
2. A program that steps no torch optimizer is read at each backward: its root modules are looked
   for once, and only weak references to them are kept.
3. At exit the roots are written to one file per process: DIRECTORY/PID.json.

It shares nothing with the recorder but the fingerprint: no dispatch mode, no module hook, no trace.

>>> start_probe(Path("/tmp/arm"))  # doctest: +SKIP
"""

from __future__ import annotations

import atexit
import functools
import gc
import hashlib
import json
import os
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import _disable_current_modes

from bitstep.errors import FingerprintError
from bitstep.fingerprint import fingerprint


class Probe:
    """The roots of one process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._roots: list[str] = []
        self._modules: list[weakref.ref[nn.Module]] | None = None
        self._steps_torch = False

    def attach(self) -> None:
        """Hook optimizers and backward."""
        register_optimizer_step_post_hook(self._after_step)
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._steps_torch and not torch.compiler.is_compiling():
                self._before_backward()
            return backward(*args, **kwargs)

        torch.autograd.backward = call

    def write(self) -> None:
        """Write what was read. A process that never stepped leaves nothing."""
        roots, self._roots = self._roots, []
        if roots:
            rank = os.environ.get("RANK", "")
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                rank = str(torch.distributed.get_rank())
            text = json.dumps({"rank": int(rank) if rank.isdecimal() else 0, "roots": roots})
            self._directory.mkdir(parents=True, exist_ok=True)
            (self._directory / f"{os.getpid()}.json").write_text(text)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._steps_torch = True
        self._roots.append(root(_of_optimizer(optimizer)))

    def _before_backward(self) -> None:
        if self._modules is None:
            self._modules = [weakref.ref(module) for module in _root_modules()]
        alive = [module for found in self._modules if (module := found()) is not None]
        self._roots.append(root(p for module in alive for p in module.parameters()))


def root(tensors: Iterable[Tensor]) -> str:
    """One digest of many tensors, in their order."""
    digest = hashlib.blake2b(digest_size=8)
    with _disable_current_modes(), torch.no_grad():
        for tensor in tensors:
            try:
                found = fingerprint(getattr(tensor, "_local_tensor", tensor).detach())
            except FingerprintError:
                continue
            digest.update(f"{found.sum:x} {found.dtype} {found.shape}\n".encode())
    return digest.hexdigest()


def _of_optimizer(optimizer: Any) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter
            state = optimizer.state.get(parameter, {})
            yield from (value for value in state.values() if isinstance(value, Tensor))


def _root_modules() -> list[nn.Module]:
    """Modules that are no other's child, in an order that repeats: by class and size."""
    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    children = {id(child) for module in modules for child in module.children()}
    roots = [m for m in modules if id(m) not in children and any(True for _ in m.parameters())]
    return sorted(roots, key=lambda m: (type(m).__name__, sum(p.numel() for p in m.parameters())))


def start_probe(directory: Path) -> Probe:
    """Probe this process; what it read is written when it exits."""
    probe = Probe(directory)
    probe.attach()
    atexit.register(probe.write)
    return probe
