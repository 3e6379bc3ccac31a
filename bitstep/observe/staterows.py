"""Rows of the training state: one root per stream at every level, one row per tensor from `phase`.

    start       the state before the first step of an attempt
    reduce ...  what an engine's adapter reads within a step; `op` says after what
    backward    gradients after each backward
    optimizer   occurrence 0: what the first optimizer of a step finds
                occurrence 1: what the step leaves behind

>>> StateRows(columns, scope, Program(names, optimizers)).at_end(each=True)  # doctest: +SKIP
1361443046217353453
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch

from bitstep.observe import snapshot
from bitstep.observe.digests import PLAIN, STRIDED, is_wrapped
from bitstep.observe.reading import Reader, Reading, Whole
from bitstep.observe.scope import Scope
from bitstep.observe.snapshot import Item, Source
from bitstep.records import Fingerprint
from bitstep.trace.columns import Columns, unicode
from bitstep.trace.schema import metric_bits


class StateRows:
    """Reads the state of the program and writes rows of it."""

    def __init__(self, columns: Columns, scope: Scope, source: Source) -> None:
        self.source = source
        self._columns = columns
        self._scope = scope
        self._read = Reader().read
        self._whole = Whole()

    def random(self, phase: str) -> None:
        """The state of every process-wide generator."""
        for stream, found in self.source.generators().items():
            self.add(phase, stream, "rng", found)

    def start(self, each: bool) -> int:
        """The state before the first step. Gives back its root."""
        return self._state("start", 0, each)

    def at_end(self, each: bool) -> int:
        """The state that a step leaves behind. Gives back its root."""
        return self._state("optimizer", 1, each)

    def before_optimizer(self, each: bool) -> None:
        """Gradients and, with `each`, everything that the optimizer reads."""
        gradients = self._read(self.source.gradients())
        self._root("optimizer", "grads", gradients)
        if each:
            self._rows("optimizer", 0, gradients)
            self._rows("optimizer", 0, self._read(self.source.parameters()))
            self._rows("optimizer", 0, self._read(self.source.moments()))

    def after_backward(self, microbatch: int) -> None:
        """The gradient of each parameter."""
        self._rows("backward", 0, self._read(self.source.gradients()), microbatch)

    def within(self, phase: str, op: str, items: Iterable[Item], microbatch: int) -> None:
        """A row for each of these tensors, as they are after `op` of an engine."""
        self._rows(phase, 0, self._read(items), microbatch, op)

    def bits(self) -> int:
        """One number for the bits of all parameters."""
        return self._read(self.source.parameters()).root()

    def settings(self, optimizer: Any) -> None:
        """Every hyper-parameter of an optimizer that is a number, by its bits."""
        kind = type(optimizer).__name__
        for number, group in enumerate(optimizer.param_groups):
            head = self._scope.head("optimizer", f"group{number}", kind)
            for key, value in _numbers(group):
                dtype = "float64" if isinstance(value, float) else "int64"
                bits = metric_bits(value, dtype)
                self._columns.add(head, 0, f"args.{key}", bits, dtype, ())

    def names_of_addresses(self) -> dict[int, str]:
        """Address -> name and slot of every parameter, gradient and moment, as they are now."""
        source = self.source
        found = {}
        items = chain(source.parameters(), source.gradients(), source.moments())
        for name, slot, tensor, _, _ in snapshot.listed(items):
            inner = tensor if type(tensor) in PLAIN else getattr(tensor, "_local_tensor", tensor)
            if inner.layout is not STRIDED or is_wrapped(inner):
                continue
            if address := inner.data_ptr():  # 0 where there are no elements.
                found[address] = _element(name, slot)
        return found

    def add(self, phase: str, module: str, slot: str, found: Fingerprint) -> None:
        """One row that says itself where it belongs."""
        head = self._scope.head(phase, module)
        self._columns.add(head, 0, slot, found.sum, found.dtype, found.shape)

    def _state(self, phase: str, occurrence: int, each: bool) -> int:
        streams = {
            "params": self._read(self.source.parameters()),
            "optimizer": self._read(self.source.moments()),
            "buffers": self._read(self.source.buffers()),
        }
        if each:
            for reading in streams.values():
                self._rows(phase, occurrence, reading)
        for stream, reading in streams.items():
            self._root(phase, stream, reading)
        return self._whole.root(list(streams.values()))

    def _root(self, phase: str, stream: str, reading: Reading) -> None:
        self.add(phase, "", f"root.{stream}", Fingerprint(reading.root(), "uint64", ()))
        if reading.table.is_counted:
            logical = Fingerprint(reading.table.logical(reading.sums), "uint64", ())
            self.add(phase, "", f"root.logical.{stream}", logical)

    def _rows(
        self, phase: str, occurrence: int, reading: Reading, microbatch: int = -1, op: str = ""
    ) -> None:
        def head(name: str) -> int:
            return self._scope.head(phase, name, op, microbatch)

        cells = reading.table.cells((phase, op, microbatch), occurrence, head)
        self._columns.extend(cells, reading.sums.tolist())


@functools.lru_cache(1 << 16)
def _element(name: str, slot: str) -> str:
    """What an element of a list is called: "Net.0.weight", "Net.0.weight:exp_avg"."""
    short = slot.removeprefix("state.")
    return unicode(name if short == "param" else f"{name}:{short}")


def _numbers(group: dict[str, Any]) -> Iterator[tuple[str, float | int]]:
    for key, value in group.items():
        several = value if isinstance(value, tuple) else (value,)
        for at, number in enumerate(several):
            name = key if len(several) == 1 else f"{key}.{at}"
            if isinstance(number, torch.Tensor) and number.numel() == 1 and number.is_cpu:
                number = number.detach().item()
            if isinstance(number, bool | int) and -(2**63) <= number < 2**63:
                yield name, int(number)
            elif isinstance(number, float):
                yield name, number
