"""Where a program is: step, phase and module, found by hooks of its own.

1. A step begins with the first training forward of a root module after an update.
2. An update is a step of any torch optimizer, or of the optimizer of our engine, which is none.
3. Whoever listens hears of each position as it is reached, and of each loss.

    clock = Clock(heard)
    clock.start()
    ...
    clock.stop()
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

OWN_OPTIMIZER = "bitstep.train.optimizer"
"""Of our engine; looked for by name in a program, never imported."""

Heard = Callable[[str, Any], None]
"""Takes a position (or "loss", "step") and what it is about: a root, an optimizer, tensors."""


class Clock:
    """Counts steps of one process; `phase` is start, forward, backward, between, optimizer, data.

    One thread: the one that trains.
    """

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self.reset()
        self._undo: list[Callable[[], None]] = []

    def reset(self) -> None:
        """Before the first step again."""
        self.step = 0
        self.phase = "start"
        self._is_new = True
        self._running: list[nn.Module] = []
        self._names: dict[int, str] = {}

    def start(self) -> None:
        """Hook modules, optimizers and backward, in every place that torch has for all of them."""
        handles = [
            modules.register_module_forward_pre_hook(self._enters),
            modules.register_module_forward_hook(self._leaves, always_call=True),
            optimizers.register_optimizer_step_pre_hook(self._before_update),
            optimizers.register_optimizer_step_post_hook(self._after_update),
        ]
        self._undo += [handle.remove for handle in handles]
        self._wrap(torch.autograd, "backward", self._backward)

    def stop(self) -> None:
        """Take every hook away."""
        while self._undo:
            self._undo.pop()()

    def module(self) -> str:
        """The module whose forward runs: "Net.layers.0", or "" outside of every forward."""
        return self._names.get(id(self._running[-1]), "") if self._running else ""

    def _wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        inner = getattr(owner, name)
        wrapped = functools.wraps(inner)(functools.partial(wrapper, inner))
        # A partial is no method: a class needs a function.
        function = (lambda *a, **k: wrapped(*a, **k)) if isinstance(owner, type) else wrapped
        setattr(owner, name, function)
        self._undo.append(lambda: setattr(owner, name, inner))

    def _enters(self, module: nn.Module, args: Any) -> None:
        is_root = not self._running and self.phase != "backward"
        self._running.append(module)
        if not is_root or not torch.is_grad_enabled() or not module.training:
            return
        if id(module) not in self._names:
            self._name(module)
        if self._is_new:
            self.step, self._is_new = self.step + 1, False
            self._find_own_optimizer()
            self._heard("step", module)
        self.phase = "forward"
        self._heard("before-forward", module)

    def _leaves(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._running:
            self._running.pop()
        if not self._running and self.phase == "forward":
            self._heard("after-forward", module)

    def _name(self, root: nn.Module) -> None:
        for name, module in root.named_modules():
            path = [type(_unwrapped(root)).__name__, *_without_wrappers(name.split("."))]
            self._names[id(module)] = ".".join(path)

    def _backward(self, inner: Callable[..., None], tensors: Any, *args: Any, **named: Any) -> None:
        losses = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        self._heard("loss", losses)
        before, self.phase = self.phase, "backward"
        try:
            inner(tensors, *args, **named)
        finally:
            self.phase = "between" if before != "backward" else before
        self._heard("after-backward", losses)

    def _before_update(self, optimizer: Any, *args: Any) -> None:
        self.phase = "optimizer"
        self._heard("before-optimizer", optimizer)

    def _after_update(self, optimizer: Any, *args: Any) -> None:
        self._heard("after-optimizer", optimizer)
        self.phase, self._is_new = "data", True

    def _find_own_optimizer(self) -> None:
        module = sys.modules.get(OWN_OPTIMIZER)
        if module is not None and not hasattr(module.AdamW.step, "__wrapped_by_faults__"):
            self._wrap(module.AdamW, "step", self._own_update)
            module.AdamW.step.__wrapped_by_faults__ = True

    def _own_update(
        self, inner: Callable[..., None], optimizer: Any, gradients: Any, **named: Any
    ) -> None:
        optimizer.gradients_of_faults = gradients
        self._before_update(optimizer)
        inner(optimizer, gradients, **named)
        self._after_update(optimizer)
        del optimizer.gradients_of_faults


def _unwrapped(module: nn.Module) -> nn.Module:
    inner = getattr(module, "module", None)
    is_wrapper = type(module).__name__ in ("DistributedDataParallel", "DataParallel")
    return _unwrapped(inner) if is_wrapper and isinstance(inner, nn.Module) else module


def _without_wrappers(path: Iterable[str]) -> list[str]:
    return [name for name in path if name not in ("module", "_orig_mod", "")]
