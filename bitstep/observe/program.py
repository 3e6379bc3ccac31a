"""The training state of any torch program: what hangs on its modules and its optimizers.

1. Names come from modules (`Names`); of a parameter that hangs on none, from its optimizer.
2. The optimizers' state goes by parameter name, never by list position.
3. Each stream is `Held`: its names are its key, so that the reader sees at once when something was
   added, replaced or renamed.

>>> [item.slot for item in Program(Names(), Optimizers()).parameters()]
[]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from bitstep.observe.digests import PLAIN
from bitstep.observe.names import Names, nested
from bitstep.observe.optimizers import Optimizers
from bitstep.observe.snapshot import Held, Item
from bitstep.observe.streams import random_states
from bitstep.records import Fingerprint


class Program:
    """The state of a program as torch shows it."""

    def __init__(self, names: Names, optimizers: Optimizers) -> None:
        self._names = names
        self._optimizers = optimizers
        self._orders: dict[tuple[Any, ...], list[Any]] = {}

    def parameters(self) -> Held:
        """Every parameter of every root, sharded or not, then those that no root has."""
        names, tensors = self._parameters()
        return _held(names, ["param"] * len(names), tensors)

    def gradients(self) -> Held:
        """The gradient of every parameter that has one."""
        names, tensors = self._parameters()
        gradients = [tensor.grad for tensor in tensors]
        named = [name for name, it in zip(names, gradients, strict=True) if it is not None]
        return _held(named, ["grad"] * len(named), [it for it in gradients if it is not None])

    def moments(self) -> Held:
        """Every tensor that an optimizer keeps for a parameter."""
        known = self._names.parameters().known
        names: list[str] = []
        slots: list[str] = []
        tensors: list[Tensor] = []
        for which, optimizer in self._optimizers.numbered():
            states: Any = getattr(optimizer, "state", {})
            for at, parameter in enumerate(_optimized(optimizer)):
                if state := states.get(parameter):
                    name = known.get(id(parameter)) or f"optimizer{which}.{at}"
                    for slot, tensor in self._kept(state):
                        names.append(name)
                        slots.append(slot)
                        tensors.append(tensor)
        return _held(names, slots, tensors)

    def buffers(self) -> Held:
        """Every buffer, then every tensor that hangs on a module as a plain attribute."""
        buffers = self._names.buffers()
        attributes = list(self._names.attributes())
        names = [*buffers.names, *(name for name, _ in attributes)]
        slots = ["buffer"] * len(buffers.names) + ["attr"] * len(attributes)
        return _held(names, slots, [*buffers.tensors, *(tensor for _, tensor in attributes)])

    def generators(self) -> dict[str, Fingerprint]:
        """Every process-wide generator."""
        return random_states()

    def _parameters(self) -> tuple[list[str], list[Tensor]]:
        hanging = self._names.parameters()
        names, tensors = [*hanging.names], [*hanging.tensors]
        for which, optimizer in self._optimizers.numbered():
            for at, parameter in enumerate(_optimized(optimizer)):
                if id(parameter) not in hanging.known:
                    names.append(f"optimizer{which}.{at}")
                    tensors.append(parameter)
        self._names.has_strangers = len(names) > len(hanging.names)
        return names, tensors

    def _kept(self, state: dict[Any, Any]) -> Iterator[tuple[str, Tensor]]:
        """Slot and tensor of a state, by name: one that was restored may have its keys in another
        order."""
        keys = tuple(state)
        order = self._orders.get(keys)
        if order is None:
            order = self._orders[keys] = [(key, f"state.{key}") for key in sorted(keys, key=str)]
        for key, slot in order:
            value = state[key]
            if type(value) in PLAIN:
                yield slot, value
            else:
                yield from nested(slot, value)


def _optimized(optimizer: Any) -> list[Tensor]:
    """What an optimizer steps, in the order of its groups."""
    groups = optimizer.param_groups
    return [it for group in groups for it in group["params"] if isinstance(it, Tensor)]


def _held(names: Sequence[str], slots: Sequence[str], tensors: Sequence[Tensor]) -> Held:
    """A stream of whole tensors."""

    def cut() -> Iterator[tuple[int, Item]]:
        return enumerate(map(Item, names, slots, tensors))

    return Held((tuple(names), tuple(slots)), tensors, cut)
