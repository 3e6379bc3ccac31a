"""The name of every module, parameter and buffer: by class of the root, then by path.

1. A root is a module whose forward is called from outside of any module, or the outermost one that
   holds it: blocks that a program calls one by one are all named at the first. It is named by its
   class, the second of a class "Net#1", in the order of first calls; one without any tensor, like
   a loss that is made anew each step, has no number.
2. Wrappers lend no name: DDP, FSDP, compiled and checkpointed modules are called as what they
   wrap, so that a run with and one without them align.
3. Modules are held weakly, tensors not at all: what hangs on a module is looked up when it is
   read, for a step may put another tensor there. Of a parameter that FSDP2 has gathered the shard
   is given, which is what is trained.

>>> names = Names()
>>> names.root(torch.nn.Sequential(torch.nn.Linear(1, 1)))
'Sequential'
>>> names.parameters().names
('Sequential.0.weight', 'Sequential.0.bias')
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import Tensor, nn

from bitstep.observe.sharded import shards_of

_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
_TABLES = ("_parameters", "_buffers", "_modules")
_MOST_SEARCHES = 16
_MOST_ITEMS = 256
"""A longer container on a module is data, not state."""
_OF_EVERY_MODULE = frozenset(nn.Module().__dict__)
_NO_TENSORS = frozenset((bool, int, float, str, type(None), type(lambda: None)))
Named = tuple[str, Tensor]


@dataclass(frozen=True, slots=True)
class Hanging:
    """Tensors that hang on modules, and their names."""

    names: tuple[str, ...]
    tensors: list[Tensor]
    known: dict[int, str]
    """The name of each, by its address."""

    def __iter__(self) -> Iterator[Named]:
        return zip(self.names, self.tensors, strict=True)


class Names:
    """The names of one program, given at first sight and never changed."""

    def __init__(self) -> None:
        self._paths: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._classes: Counter[str] = Counter()
        self._searches = 0
        self._chunks: dict[int, tuple[weakref.ref[nn.Module], int]] = {}
        self._roots: list[tuple[str, weakref.ref[nn.Module]]] = []
        self._owners: list[tuple[str, weakref.ref[nn.Module]]] = []
        self._known: dict[str, Any] = {}
        """By table: what was seen in it, and the names that were made of it."""
        self._whole: Any = None
        """The modules that were all named when they were looked at last, and what they held."""
        self.has_strangers = False
        """Whether an optimizer steps what hangs on no module that is known."""

    def path(self, module: nn.Module) -> str | None:
        """The name of a module, or None if it belongs to no root that was seen."""
        found = self._paths.get(id(module))
        return found[1] if found is not None and found[0]() is module else None

    def root(self, module: nn.Module) -> str:
        """The name of a root; its modules are named at first sight."""
        known = self.path(module)
        if known is not None:
            return known
        inner = unwrapped(module)
        if not has_tensors(inner):
            return _kind(inner)
        if self.path(inner) is None:
            whole = self._outermost(inner)
            name = self._numbered(self._chunk(module) + _kind(whole))
            self._roots.append((name, weakref.ref(whole)))
            self._walk(name, whole)
        name = self.path(inner) or _kind(inner)
        while module is not inner:
            self._name(module, name, tensors=False)
            module = next(iter(module.children()))
        return name

    def _outermost(self, module: nn.Module) -> nn.Module:
        """The module that holds this one, and is held by none. Looking through all objects takes
        a moment, so a program that makes new roots all the time is given up on."""
        if self._searches >= _MOST_SEARCHES:
            return module
        self._searches += 1
        holders: dict[int, list[nn.Module]] = {}
        for found in gc.get_objects():
            if issubclass(type(found), nn.Module) and unwrapped(found) is found:
                for child in _table(found, "_modules").values():
                    holders.setdefault(id(child), []).append(found)
        seen = {id(module)}
        while around := [h for h in holders.get(id(module), ()) if id(h) not in seen]:
            module = max(around, key=lambda holder: sum(1 for _ in holder.modules()))
            seen.add(id(module))
        return module

    def adopt(self, name: str, root: nn.Module, paths: Iterable[tuple[nn.Module, str]]) -> None:
        """A root that an engine's adapter names, with every module in it."""
        if self.path(root) is None:
            self._roots.append((name, weakref.ref(root)))
            for module, path in paths:
                self._name(module, path, tensors=True)

    def stage(self, module: nn.Module, index: int) -> None:
        """A module is stage number `index` of a pipeline: "chunk1:Net", wherever it runs."""
        self._chunks[id(module)] = weakref.ref(module), index

    def _chunk(self, module: nn.Module) -> str:
        found = self._chunks.get(id(module))
        return f"chunk{found[1]}:" if found is not None and found[0]() is module else ""

    def late(self, module: nn.Module, caller: str) -> str:
        """The name of a module that hangs on a root since its modules were named, or that hangs
        on none: on a list, perhaps."""
        if not has_tensors(module):
            return caller
        for name, root in self.roots():
            self._walk(name, root)
        if self.path(module) is None:
            self._walk(self._numbered(f"{caller}.{type(module).__name__}"), module)
        return self.path(module) or caller

    def are_whole(self) -> bool:
        """Whether every module of every root has its name, and every parameter that is stepped."""
        modules = [module for _, module in self._alive()]
        held = [*chain.from_iterable(_table(module, "_modules").values() for module in modules)]
        # Of its number: the place of one that is gone may have been given to another.
        seen = len(modules), [*map(id, held)]
        if seen != self._whole:
            if any(self.path(child) is None for child in held if child is not None):
                return False
            self._whole = seen
        return not self.has_strangers

    def roots(self) -> Iterator[tuple[str, nn.Module]]:
        """The roots that are still alive."""
        for name, reference in self._roots:
            root = reference()
            if root is not None:
                yield name, root

    def parameters(self) -> Hanging:
        """Every parameter that hangs on a module right now; a tied one under its first name."""
        return self._hanging("_parameters")

    def buffers(self) -> Hanging:
        """Every buffer."""
        return self._hanging("_buffers")

    def attributes(self) -> Iterator[Named]:
        """Tensors that hang on modules as plain attributes, or in lists and mappings that do: no
        state_dict has them."""
        known: set[int] | None = None
        for path, module in self._alive():
            values = module.__dict__
            for key in [key for key in values if key not in _OF_EVERY_MODULE]:
                if type(value := values[key]) in _NO_TENSORS:
                    continue
                for name, tensor in nested(f"{path}.{key}", value):
                    if known is None:
                        known = self._registered()
                    if id(tensor) not in known:
                        known.add(id(tensor))
                        yield name, tensor

    def _registered(self) -> set[int]:
        """Every parameter and buffer, also what is tied, by its address."""
        tables = [_table(module, t) for _, module in self._alive() for t in _TABLES[:2]]
        return {id(tensor) for table in tables for tensor in table.values()}

    def _alive(self) -> list[tuple[str, nn.Module]]:
        found = [(path, owner()) for path, owner in self._owners]
        return [(path, module) for path, module in found if module is not None]

    def _hanging(self, table: str) -> Hanging:
        alive = self._alive()
        tables = [_table(module, table) for _, module in alive]
        values = [*chain.from_iterable(held.values() for held in tables)]
        # Who holds what, under which key, and what is tied: not more than that makes the names.
        seen = (len(self._owners), [*map(len, tables)], [*chain(*tables)], [*map(id, values)])
        known = self._known.get(table)
        if known is not None and known[0] == seen:
            _, names, picks, ids = known
            return Hanging(names, [values[at] for at in picks], ids)
        names, picks = _named(alive, tables)
        tensors = [values[at] for at in picks]
        shards = shards_of(module for _, module in alive)
        shown = [shards.get(id(tensor), tensor) for tensor in tensors]
        ids = {id(tensor): name for name, tensor in zip(names, shown, strict=True)}
        if not any(id(tensor) in shards for tensor in tensors):
            self._known[table] = seen, names, picks, ids
        return Hanging(names, shown, ids)

    def _numbered(self, kind: str) -> str:
        number = self._classes[kind]
        self._classes[kind] += 1
        return kind if number == 0 else f"{kind}#{number}"

    def _walk(self, name: str, root: nn.Module) -> None:
        for path, module in root.named_modules():
            clean = ".".join(part for part in path.split(".") if part and part not in _WRAPPED)
            self._name(module, f"{name}.{clean}" if clean else name, tensors=True)

    def _name(self, module: nn.Module, path: str, tensors: bool) -> None:
        if self.path(module) is not None:
            return
        owner = weakref.ref(module)
        self._paths[id(module)] = (owner, path)
        if tensors:
            self._owners.append((path, owner))


def _kind(module: nn.Module) -> str:
    """The class as the program knows it: FSDP2 makes one of its own."""
    kind = type(module).__name__
    if any(base.__name__ == "FSDPModule" for base in type(module).mro()):
        return kind.removeprefix("FSDP")
    return kind


def _table(module: nn.Module, name: str) -> dict[str, Any]:
    """What a module holds under that name; a scripted one has a table of its own kind."""
    found = module.__dict__.get(name, {})
    return found if isinstance(found, dict) else dict(found.items())


def has_tensors(module: nn.Module) -> bool:
    """Whether a module or one inside of it has a parameter or a buffer."""
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())


def _named(
    alive: list[tuple[str, nn.Module]], tables: list[dict[str, Any]]
) -> tuple[tuple[str, ...], list[int]]:
    """The name of each tensor in these tables, a tied one once, and where it stands among all."""
    names, picks, seen = [], [], set()
    paths = ((path, key, it) for (path, _), t in zip(alive, tables, strict=True)
             for key, it in t.items())  # fmt: skip
    for at, (path, key, value) in enumerate(paths):
        if isinstance(value, Tensor) and id(value) not in seen:
            seen.add(id(value))
            names.append(f"{path}.{key}")
            picks.append(at)
    return tuple(names), picks


def nested(name: str, value: Any, depth: int = 0) -> Iterator[Named]:
    """The tensor, or those in lists and mappings, by name."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict | list | tuple) and len(value) <= _MOST_ITEMS and depth < 3:
        items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        for at, (key, item) in enumerate(items):
            # The text of another key may be an address.
            yield from nested(f"{name}.{key if type(key) is str else at}", item, depth + 1)


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside of DDP, of torch.compile and of Megatron's wrapper for 16 bits."""
    while True:
        inner = _table(module, "_modules")
        if type(module).__name__ in ("DistributedDataParallel", "DataParallel", "Float16Module"):
            module = inner["module"]
        elif type(module).__name__ == "OptimizedModule":
            module = inner["_orig_mod"]
        else:
            return module
