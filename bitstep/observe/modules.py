"""Forward of modules: the stack that labels every row, and rows of their inputs and outputs.

1. Two global hooks cover every module of the program; where only roots matter (`roots`), they rest
   while one runs.
2. A forward outside of any module is that of a root: the recorder hears of it.
3. At level `module` inputs and outputs are rows. Gradients are read by hooks on the tensors, never
   by full backward hooks, which wrap outputs in views (and break in-place work and schedules).
4. While torch.compile traces, the hooks are nothing: the region must stay what it was.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bitstep.observe import autograd
from bitstep.observe.dynamo import is_wrapper, stay_quiet, uncompiled
from bitstep.observe.names import Names, has_tensors
from bitstep.observe.roots import Roots
from bitstep.observe.scope import Scope
from bitstep.observe.undo import Undo

OnRoot = Callable[[nn.Module, Any, Mapping[str, Any]], None]


class Modules:
    """The global forward hooks of a recorder."""

    def __init__(
        self, scope: Scope, names: Names, hooks: Any, wants: Callable[[str], bool]
    ) -> None:
        self._wants = wants
        self._scope = scope
        self._names = names
        self._hooks = hooks
        self._roots = Roots(names)
        self._calls: list[tuple[int, int] | None] = []
        self.elsewhere = 0
        """Forwards of modules in other threads, which are not recorded."""

    def attach(self, undo: Undo) -> None:
        """Hook every module."""
        stay_quiet(undo)
        self._roots.attach(self._before, self._after, undo)

    def wake(self) -> None:
        """Modules have rows from now on: also those of a root that runs."""
        self._roots.leave()

    @uncompiled
    def _before(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._roots.are_resting and self._scope.is_ours():
            return
        if self._hooks.asleep or _is_made(module) or _is_tracing():
            return
        if not self._scope.is_ours():
            self.elsewhere += 1
            return
        try:
            path = self._path(module, args)
        except Exception as error:
            self._hooks.failed(error)
            path = self._scope.module
        self._scope.enter(path)
        self._rest(module)
        wanted = self._hooks.at_module and self._wants(path)
        call = self._scope.module_call(path) if wanted else None
        self._calls.append(call)
        if call is not None:
            self._rows("in", path, call, args)

    def _path(self, module: nn.Module, args: Any) -> str:
        """The name of a module whose forward begins; of a root the recorder is told."""
        if self._scope.depth or autograd.in_backward():
            path = self._names.path(module)
            return self._names.late(module, self._scope.module) if path is None else path
        path = self._names.root(module)
        if has_tensors(module):
            self._hooks.root_begins(module, args, _keyword_arguments())
        return path

    def _rest(self, module: nn.Module) -> None:
        """Of a module that runs in no other, and whose modules have no rows."""
        if self._hooks.needs_roots_only and self._scope.depth == 1 and not autograd.in_backward():
            try:
                self._roots.enter(module, self._after)
            except Exception as error:
                self._hooks.failed(error)

    @uncompiled
    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._roots.are_resting and self._scope.is_ours():
            return
        if self._hooks.asleep or _is_made(module) or _is_tracing():
            return
        if not self._scope.is_ours():
            return
        call = self._calls.pop() if self._calls else None
        if call is not None:
            self._rows("out", self._names.path(module) or self._scope.module, call, output)
        self._scope.leave()
        if not self._scope.depth and not autograd.in_backward():
            self._hooks.root_ended(module)

    def _rows(self, what: str, path: str, call: tuple[int, int], value: Any) -> None:
        head, occurrence = call
        try:
            for at, tensor in enumerate(tensors_of(value)):
                self._hooks.tensor_row(head, occurrence, f"{what}.{at}", tensor)
                if self._hooks.listens and tensor.grad_fn is not None:
                    self._listen(path, f"grad_{what}.{at}", occurrence, tensor)
        except Exception as error:
            self._hooks.failed(error)

    def _listen(self, path: str, slot: str, occurrence: int, tensor: Tensor) -> None:
        """A row of the gradient when it comes. The hook knows names only: it holds no tensor."""
        if autograd.in_backward():
            return
        hooks, scope = self._hooks, self._scope
        head = scope.head("backward", path, microbatch=scope.microbatch)

        def arrived(gradient: Tensor) -> None:
            if hooks.at_module and not hooks.asleep and scope.is_ours():
                hooks.tensor_row(head, occurrence, slot, gradient)

        tensor.register_hook(arrived)  # type: ignore[no-untyped-call]


def _is_made(module: nn.Module) -> bool:
    """A module that torch.compile made of the program's, and no wrapper that the program calls."""
    return is_wrapper(module) and type(module).__name__ != "OptimizedModule"


def _is_tracing() -> bool:
    """Under torch.jit.trace looking at a tensor is part of what is traced."""
    return torch._C._get_tracing_state() is not None


def _keyword_arguments() -> Mapping[str, Any]:
    """Of the module call that runs our hook: torch hands them to no global pre-hook."""
    # Above us: _path, the hook, the call.
    found = sys._getframe(3).f_locals.get("kwargs")
    return found if isinstance(found, dict) else {}


def tensors_of(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists, mappings and dataclass-like outputs, in order."""
    if isinstance(value, Tensor):
        yield value
    elif depth > 8:
        return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_of(item, depth + 1)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_of(item, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_of(getattr(value, field.name, None), depth + 1)


def named_tensors(args: Any, kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a call by the name of their argument: "0", "input_ids", "0.1"."""
    arguments = {**{str(at): value for at, value in enumerate(args)}, **kwargs}
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            yield name, value
        else:
            for at, tensor in enumerate(tensors_of(value)):
                yield f"{name}.{at}", tensor
