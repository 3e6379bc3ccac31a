"""What is reachable from the program's own variables, right now, with a way to change each.

1. The frames of this thread whose code is the program's own (not of a library) are walked from the
   outermost, and from their variables whatever hangs on objects of the program's own classes,
   on modules, on lists and mappings.
2. What is found once is not found again: the name that an outer frame has for it stands.

    for thing in reachable():
        thing.path, thing.value    # "trainer.seen", 3
        thing.put(4)
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from bitstep.observe.examine.draws import is_generator
from bitstep.observe.examine.frames import is_own, own_frames

MOST: Final = 20_000
"""Values that are looked at in one walk."""
LONGEST: Final = 256
"""A longer container is data."""
DEEPEST: Final = 5

_OF_MODULES: Final = ("_parameters", "_buffers", "_modules", "training", "call_super_init")
_LEAVES: Final = (Tensor, np.ndarray, LRScheduler)


class Thing(NamedTuple):
    """One value, and how to put another in its place."""

    path: str
    value: Any
    put: Callable[[Any], None]


def reachable() -> Iterator[Thing]:
    """Numbers, tensors, arrays, generators, schedules and scalers, each once."""
    walk = _Walk()
    for frame in own_frames():
        is_module = frame.f_code.co_name == "<module>"
        prefix = "" if is_module else f"{frame.f_code.co_name}: "
        for name, value in list(frame.f_locals.items()):
            if not name.startswith("__"):
                yield from walk.visit(f"{prefix}{name}", value, _variable(frame, name), 0)
    # Of modules that no variable in sight holds: those whose code is on the way.
    for frame in own_frames():
        for name, value in list(frame.f_globals.items()):
            if not name.startswith("__"):
                yield from walk.visit(name, value, _item(frame.f_globals, name), 0)


class _Walk:
    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self._paths: set[str] = set()

    def visit(
        self, path: str, value: Any, put: Callable[[Any], None], depth: int
    ) -> Iterator[Thing]:
        if isinstance(value, bool | str | bytes | type | ModuleType | FunctionType | MethodType):
            return
        if isinstance(value, int | float):
            if path not in self._paths:
                self._paths.add(path)
                yield Thing(path, value, put)
            return
        if value is None or id(value) in self._seen or len(self._seen) > MOST:
            return
        self._seen[id(value)] = value  # held, so that no other comes to have its id
        if isinstance(value, _LEAVES) or is_generator(value) or is_scaler(value):
            yield Thing(path, value, put)
        elif depth < DEEPEST:
            yield from self._inside(path, value, depth + 1)

    def _inside(self, path: str, value: Any, depth: int) -> Iterator[Thing]:
        if isinstance(value, nn.Module):
            for name, module in value.named_modules():
                inner = f"{path}.{name}" if name else path
                self._seen[id(module)] = module
                attributes = {k: v for k, v in vars(module).items() if k not in _OF_MODULES}
                yield from self._attributes(inner, module, attributes, depth)
        elif isinstance(value, dict) and len(value) <= LONGEST:
            for key, item in list(value.items()):
                if isinstance(key, str | int):
                    yield from self.visit(f"{path}.{key}", item, _item(value, key), depth)
        elif isinstance(value, list | tuple) and len(value) <= LONGEST:
            for at, item in enumerate(value):
                yield from self.visit(f"{path}.{at}", item, _item(value, at), depth)
        elif isinstance(value, DataLoader):
            held = {k: getattr(value, k, None) for k in ("dataset", "sampler", "generator")}
            yield from self._attributes(path, value, held, depth)
        elif _is_of_own_class(value):
            yield from self._attributes(path, value, _attributes_of(value), depth)
        elif hasattr(value, "generator") and type(value).__module__.startswith("torch.utils.data"):
            yield from self._attributes(path, value, {"generator": value.generator}, depth)

    def _attributes(
        self, path: str, owner: Any, attributes: dict[str, Any], depth: int
    ) -> Iterator[Thing]:
        for name, item in list(attributes.items()):
            if not name.startswith("__"):
                yield from self.visit(f"{path}.{name}", item, _attribute(owner, name), depth)


def is_scaler(value: Any) -> bool:
    """Whether it scales the loss, and is on."""
    named = any(base.__name__ == "GradScaler" for base in type(value).mro())
    return named and bool(value.is_enabled())


def _is_of_own_class(value: Any) -> bool:
    module = sys.modules.get(type(value).__module__)
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_own(file)


def _attributes_of(value: Any) -> dict[str, Any]:
    slots = [name for kind in type(value).mro() for name in vars(kind).get("__slots__", ())]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _variable(frame: FrameType, name: str) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        frame.f_locals[name] = value
        if frame.f_code.co_name != "<module>":
            # Before 3.13 what is put into f_locals stays there, unless it is told to go on.
            to_fast = ctypes.pythonapi.PyFrame_LocalsToFast
            to_fast(ctypes.py_object(frame), ctypes.c_int(0))

    return put


def _item(owner: Any, key: Any) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        owner[key] = value

    return put


def _attribute(owner: Any, name: str) -> Callable[[Any], None]:
    return lambda value: setattr(owner, name, value)
