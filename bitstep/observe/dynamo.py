"""Hooks of ours in a program that uses torch.compile: they run, and no region knows of them.

1. Where dynamo traces *through* a hook, inside of a region, the first statement of the hook,
   `if torch.compiler.is_compiling(): return`, leaves nothing of it in the graph.
2. Where dynamo calls a hook as a frame of its own, `uncompiled` keeps it from being compiled.
3. Modules that torch.compile made are told from the program's by `is_wrapper`.
4. The warning about global hooks comes only if the program has some itself.

Nothing here imports torch._dynamo, which takes seconds.

>>> @uncompiled
... def hook(module, args):
...     return None
>>> is_wrapper(torch.nn.Linear(2, 2))
False
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch

from bitstep.observe.undo import Undo

_HOOK_TABLES: Final = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)
_WRAPPERS: Final = (
    ("torch._dynamo.eval_frame", "OptimizedModule"),
    ("torch.fx._lazy_graph_module", "_LazyGraphModule"),
)
"""Private names of torch used here: those above, torch.nn.modules.module._has_any_global_hook,
and torch._C._dynamo.eval_frame with set_code_exec_strategy, _FrameExecStrategy, _FrameAction."""
Function = TypeVar("Function", bound=Callable[..., Any])


def problem() -> str | None:
    """Why hooks of compiled modules cannot be kept alive with this torch, or None."""
    if _strategy(with_what_it_calls=True) is None:
        return "this torch has no frame strategies: a compiled model has no rows of its own module"
    return None


def uncompiled(function: Function) -> Function:
    """Decorate a hook that calls nothing of the program.

    Dynamo calls hooks of a root module with its callback on. It would compile the hook as a frame
    of its own, where `torch.compiler.is_compiling()` is true: into nothing, for good. Tracing
    *through* a hook, inside of a region, is not changed by this: that is what the guard is for.
    """
    return _skipped(function, with_what_it_calls=True)


def uncompiled_call(function: Function) -> Function:
    """Decorate a wrapper that calls on into the program, whose frames may be compiled."""
    return _skipped(function, with_what_it_calls=False)


def _skipped(function: Function, with_what_it_calls: bool) -> Function:
    strategy = _strategy(with_what_it_calls)
    if strategy is not None:
        torch._C._dynamo.eval_frame.set_code_exec_strategy(function.__code__, strategy)
    return function


def _strategy(with_what_it_calls: bool) -> Any:
    frames: Any = torch._C._dynamo.eval_frame
    try:
        action = frames._FrameAction
        inner = action.SKIP if with_what_it_calls else action.DEFAULT
        return frames._FrameExecStrategy(action.SKIP, inner)
    except AttributeError:
        return None


def is_wrapper(module: Any) -> bool:
    """Whether a module is one that torch.compile put around or made of the program's: hooks are
    called for it too, with arguments that are none of the program's."""
    for home, name in _WRAPPERS:
        kind = getattr(sys.modules.get(home), name, None)
        if kind is not None and isinstance(module, kind):
            return True
    return False


def stay_quiet(undo: Undo) -> None:
    """`torch.compile(module)(...)` warns where global module hooks exist. Ours are not the
    program's: it is warned only if it would be without us, for a warning may be an error."""
    modules = torch.nn.modules.module
    before = getattr(modules, "_has_any_global_hook", None)
    if before is None:
        return
    tables = [getattr(modules, name, {}) for name in _HOOK_TABLES]

    def has_hook_of_program() -> bool:
        hooks = [hook for table in tables for hook in table.values()]
        return bool(before()) and any(not _is_ours(hook) for hook in hooks)

    undo.replace(modules, "_has_any_global_hook", has_hook_of_program)


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("bitstep.observe")
