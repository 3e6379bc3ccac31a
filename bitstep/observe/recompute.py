"""Recomputed forwards are labelled as such, and with the module that was checkpointed.

1. Where a forward is checkpointed, what will be run again is wrapped: both kinds, with and without
   reentrant autograd.
2. When it runs again, in backward, everything in it has the pass `recompute`.

A module inside of it has its own hooks; what lies between modules has only this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import checkpoint

from bitstep.observe.scope import Scope
from bitstep.observe.undo import Undo


def watch(scope: Scope, undo: Undo) -> str | None:
    """Label recomputation from now on; gives back why it cannot be, with this torch."""
    frame = getattr(checkpoint, "_CheckpointFrame", None)
    function = getattr(checkpoint, "CheckpointFunction", None)
    if frame is None or function is None:
        return "this torch checkpoints in a way of its own: recomputation is not labelled"
    made, forward = frame.__init__, function.forward

    @functools.wraps(made)
    def note(self: Any, recompute_fn: Any, *args: Any, **kwargs: Any) -> None:
        made(self, _labelled(scope, recompute_fn), *args, **kwargs)

    @functools.wraps(forward)
    def keep(ctx: Any, run_function: Any, *args: Any) -> Any:
        with scope.checkpointed():
            result = forward(ctx, run_function, *args)
        ctx.run_function = _labelled(scope, run_function)
        return result

    undo.replace(frame, "__init__", note)
    undo.replace(function, "forward", staticmethod(keep))
    return None


def _labelled(scope: Scope, function: Callable[..., Any]) -> Callable[..., Any]:
    if torch.compiler.is_compiling() or not scope.is_ours():
        return function
    module = scope.here()

    @functools.wraps(function)
    def again(*args: Any, **kwargs: Any) -> Any:
        with scope.recomputing(module):
            return function(*args, **kwargs)

    return again
