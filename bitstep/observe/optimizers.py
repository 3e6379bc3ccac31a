"""Optimizer steps, gradient clipping, loss scaling and backward, as the program calls them.

1. Global optimizer hooks see every `step` of every torch optimizer.
2. `torch.autograd.backward`, `clip_grad_norm_`, `get_total_norm` and the methods of GradScaler are
   wrapped: they say where a phase begins and ends, and hand over the loss and the norm.
3. The step that `get_state_dict` takes with a learning rate of 0 to make state is none.

Wrapping changes what is called and not what is computed; `undo` puts the originals back.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from bitstep.observe.autograd import in_backward
from bitstep.observe.undo import Undo

_STATE_DICT = "torch.distributed.checkpoint.state_dict"
# A program that has imported a function by name before we came still calls the private ones.
_CLIPS = (
    "clip_grad_norm_", "get_total_norm", "clip_grads_with_norm_", "clip_grad_value_",
    "_get_total_norm", "_clip_grads_with_norm_",
)  # fmt: skip


class Optimizers:
    """Every torch optimizer that the program has made, held weakly."""

    def __init__(self) -> None:
        self._known: list[weakref.ref[Any]] = []

    def __iter__(self) -> Iterator[Any]:
        return (optimizer for _, optimizer in self.numbered())

    def numbered(self) -> Iterator[tuple[int, Any]]:
        """Those that are alive, with their number among all."""
        for number, known in enumerate(self._known):
            found = known()
            if found is not None:
                yield number, found

    def add(self, optimizer: Any) -> None:
        """One more, unless it is known."""
        if all(found is not optimizer for found in self):
            self._known.append(weakref.ref(optimizer))

    def attach(self, hooks: Any, scope: Any, undo: Undo) -> None:
        """Tell `hooks` of steps, losses and norms, and `scope` of phases."""
        made = Optimizer.__init__

        @functools.wraps(made)
        def note(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            self.add(optimizer)

        undo.replace(Optimizer, "__init__", note)

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not _makes_state() and scope.is_ours():
                self.add(optimizer)
                hooks.optimizer_begins(optimizer)

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not _makes_state() and scope.is_ours():
                hooks.optimizer_ended(optimizer)

        undo.handle(register_optimizer_step_pre_hook(before))
        undo.handle(register_optimizer_step_post_hook(after))
        _watch_backward(hooks, scope, undo)
        _watch_clip(hooks, scope, undo)
        _watch_scaler(hooks, scope, undo)


def _makes_state() -> bool:
    """Whether `get_state_dict` is the caller: it steps only to have moments to name."""
    if _STATE_DICT not in sys.modules:
        return False
    frame = sys._getframe(2)
    for _ in range(12):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") == _STATE_DICT:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _watch_backward(hooks: Any, scope: Any, undo: Undo) -> None:
    for name in ("backward", "grad"):
        undo.replace(torch.autograd, name, _around_backward(hooks, scope, name))


def _around_backward(hooks: Any, scope: Any, name: str) -> Callable[..., Any]:
    original = getattr(torch.autograd, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not scope.is_ours():
            return original(*args, **kwargs)
        if in_backward():
            with scope.original():
                return original(*args, **kwargs)
        of = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
        hooks.backward_begins(of)
        try:
            return original(*args, **kwargs)
        finally:
            hooks.backward_ended()

    return call


def _watch_clip(hooks: Any, scope: Any, undo: Undo) -> None:
    inner = torch.nn.utils.clip_grad
    for name in _CLIPS:
        original = getattr(inner, name, None)
        if original is None:
            continue
        gives_norm = name.endswith(("grad_norm_", "total_norm"))
        wrapped = _around_clip(hooks, scope, original, gives_norm)
        undo.replace(inner, name, wrapped)
        if getattr(torch.nn.utils, name, None) is original:
            undo.replace(torch.nn.utils, name, wrapped)


def _around_clip(hooks: Any, scope: Any, original: Any, gives_norm: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not scope.is_ours() or scope.phase == "clip":
            return original(*args, **kwargs)
        with scope.in_phase("clip"):
            result = original(*args, **kwargs)
        if gives_norm:
            hooks.metric("grad_norm", result, "clip")
        return result

    return call


def _watch_scaler(hooks: Any, scope: Any, undo: Undo) -> None:
    scaler = torch.amp.GradScaler
    for name in ("unscale_", "update", "step"):
        undo.replace(scaler, name, _around_scaler(hooks, scope, getattr(scaler, name), name))


def _around_scaler(hooks: Any, scope: Any, original: Any, name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not scope.is_ours():
            return original(*args, **kwargs)
        with scope.in_phase("scale"):
            result = original(*args, **kwargs)
        if name == "step":
            # A step that found inf updates nothing, and is still one turn of the loop.
            hooks.turn_ended()
        return result

    return call
