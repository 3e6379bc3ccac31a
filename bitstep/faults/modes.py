"""Two dispatch modes that hold every other one between them.

`Above` is called first, before any recorder, and `Below` last, next to the kernel:

    program -> Above -> modes of others -> Below -> kernel

1. What `Below` changes in an output, the others see as the output of the call.
2. What is changed when `Above` has come back happens between two calls: the others have seen all
   of the one, and nothing of the next.
3. A mode that looks at tensors may dispatch calls of its own. `Above` says which call is the
   program's, so that `Below` lets all others pass and both count the same ones.

`enclose` puts both in place, whoever came before, and keeps `Above` on top of whoever comes later.
A mode that is taken off again is taken off, and not the one above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _python_dispatch as stack
from torch.utils._python_dispatch import TorchDispatchMode


class Watcher(Protocol):
    """Who is told of the program's calls; `call` is what `begins` gave back."""

    def begins(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Before anyone else."""

    def runs(self, call: Any, args: Any, kwargs: Any) -> None:
        """Right before the kernel."""

    def ran(self, call: Any, result: Any) -> None:
        """Right after the kernel."""

    def ends(self, call: Any, args: Any, kwargs: Any, result: Any) -> None:
        """After everyone else."""


class Above(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Called before all other modes."""

    def __init__(self, watcher: Watcher, below: Below) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watcher, self._below = watcher, below

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: what is compiled stays compiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(_is_made_of_others(kind) for kind in types):
            # A DTensor: what it is made of comes back here, one level lower.
            return NotImplemented
        call = self._watcher.begins(func, args, kwargs)
        self._below.expected = (func, args, kwargs, call)
        result = func(*args, **kwargs)
        self._below.expected = None
        self._watcher.ends(call, args, kwargs, result)
        return result


class Below(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Called after all other modes."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watcher = watcher
        self.expected: tuple[Any, Any, Any, Any] | None = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: what is compiled stays compiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.expected is None or not _is_same(self.expected, func, args, kwargs):
            return func(*args, **kwargs)
        call, self.expected = self.expected[3], None
        self._watcher.runs(call, args, kwargs)
        result = func(*args, **kwargs)
        self._watcher.ran(call, result)
        return result


def _is_made_of_others(kind: Any) -> bool:
    return kind.__torch_dispatch__ is not Tensor.__torch_dispatch__


def tensors_of(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments, those in lists included, in order."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(value)


def _is_same(expected: tuple[Any, Any, Any, Any], func: Any, args: Any, kwargs: Any) -> bool:
    if func is not expected[0]:
        return False
    # Lists are made anew on the way down; the tensors in them are not.
    ours = tensors_of([*expected[1], *expected[2].values()])
    return list(map(id, ours)) == list(map(id, tensors_of([*args, *kwargs.values()])))


def enclose(above: Above, below: Below) -> Callable[[], None]:
    """Put `below` under and `above` over all modes of this thread; gives back the undo."""
    _arrange([below, *_others(above, below), above])
    push, pop = stack._push_mode, stack._pop_mode

    def push_under(mode: TorchDispatchMode) -> None:
        if _top() is not above:
            return push(mode)
        pop()
        push(mode)
        return push(above)

    def pop_under(key: Any = None) -> Any:
        if (
            key is not None
            or _top() is not above
            or len(stack._get_current_dispatch_mode_stack()) == 1
        ):
            return pop(key)
        pop()
        popped = pop()
        push(above)
        return popped

    # Every mode is entered and left by these two names.
    stack._push_mode, stack._pop_mode = push_under, pop_under  # type: ignore[assignment]

    def undo() -> None:
        stack._push_mode, stack._pop_mode = push, pop
        _arrange(_others(above, below))

    return undo


def _others(above: Above, below: Below) -> list[TorchDispatchMode]:
    modes = stack._get_current_dispatch_mode_stack()
    return [mode for mode in modes if mode is not above and mode is not below]


def _top() -> TorchDispatchMode | None:
    modes = stack._get_current_dispatch_mode_stack()
    return modes[-1] if modes else None


def _arrange(wanted: list[TorchDispatchMode]) -> None:
    # Not by their `with`: what a mode of others did on entering must not be done again.
    for _ in stack._get_current_dispatch_mode_stack():
        torch._C._pop_torch_dispatch_stack(None)
    for mode in wanted:
        torch._C._push_on_torch_dispatch_stack(mode)
