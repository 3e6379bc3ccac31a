"""Gathered parameters against their shards: what a module computes with, and what ranks hold.

The fingerprint is a sum over parts, so that the shards of a parameter add up to the whole one.

1. At the end of each step the shards of a parameter, one per place, are added up.
2. An input of an operation, in the module of the parameter, that has this sum and its shape, and
   has it again when the parameter has changed, is the gathered parameter: its site is learned.
   (Once is not enough: a weight of ones has the bits of a running variance of ones.)
3. At a site that is learned, every rank must have the sum, in this step and in later ones.

Nothing is learned, and so nothing compared, where the gathered tensor has other bits by design, as
with mixed precision.

    Gathers(slots).step({0: rows_0, 1: rows_1})
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from bitstep.diff.rows import Ints, Rows
from bitstep.diff.slots import Class, Slots
from bitstep.records import Flag

_WRAP = 2**64
_Site = tuple[int, int, int, int]
"""Module, op, occurrence, slot, as numbers of words."""


class Stale(NamedTuple):
    """An operation that computed with other bits than the shards hold."""

    name: str
    ranks: tuple[int, ...]
    process: int
    """The first of them, and the row there."""
    row: int


class _Whole(NamedTuple):
    """A parameter whose shards were added up."""

    total: int
    shape: tuple[int, ...]


class Gathers:
    """Follows sharded parameters over all ranks. Steps come in order."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._wholes: dict[str, _Whole] = {}
        self._last = -1
        self._once: dict[tuple[_Site, str], int] = {}
        self._sites: dict[_Site, str] = {}
        self.compared = 0

    def step(self, rows: Mapping[int, Rows]) -> list[Stale]:
        """What was gathered wrongly in a step; then the shards that it ends with are taken."""
        step = next(iter(rows.values())).step
        if step != self._last + 1:
            self._wholes.clear()  # the shards were written to in steps that are not recorded
        self._last = step
        inputs = {process: self._inputs(of) for process, of in sorted(rows.items())}
        if self._wholes:
            for process, chosen in inputs.items():
                self._learn(rows[process], chosen)
        found: dict[str, list[tuple[int, int]]] = {}
        for process, chosen in inputs.items() if self._sites else ():
            for name, row in self._wrong(rows[process], chosen):
                found.setdefault(name, []).append((process, row))
        self._wholes = _wholes(rows)
        return [
            Stale(name, tuple(dict.fromkeys(p for p, _ in at)), *at[0])
            for name, at in found.items()
        ]

    def _inputs(self, rows: Rows) -> Ints:
        chosen = self._slots.classes(rows) == Class.INPUT
        chosen &= rows.phase == rows.codes.number("forward")
        chosen &= rows.op != rows.codes.number("")
        return np.flatnonzero(chosen & (rows.flags & np.uint32(Flag.SKIPPED) == 0))

    def _learn(self, rows: Rows, inputs: Ints) -> None:
        totals: dict[int, list[str]] = {}
        for name, whole in self._wholes.items():
            totals.setdefault(whole.total, []).append(name)
        known = np.array(list(totals), np.uint64)
        for row in inputs[np.isin(rows.digest[inputs], known)].tolist():
            names = [name for name in totals[int(rows.digest[row])] if self._fits(name, rows, row)]
            for name in names:
                site, total = _site(rows, row), self._wholes[name].total
                if self._once.setdefault((site, name), total) != total:
                    self._sites.setdefault(site, name)

    def _fits(self, name: str, rows: Rows, row: int) -> bool:
        inside = name.rpartition(".")[0] == rows.text("module", row)
        return inside and rows.shape(row) == self._wholes[name].shape

    def _wrong(self, rows: Rows, inputs: Ints) -> Iterator[tuple[str, int]]:
        modules = np.array(sorted({site[0] for site in self._sites}), np.int64)
        for row in inputs[np.isin(rows.module[inputs], modules)].tolist():
            name = self._sites.get(_site(rows, row))
            if name is None or name not in self._wholes or not self._fits(name, rows, row):
                continue
            self.compared += 1
            if int(rows.digest[row]) != self._wholes[name].total:
                yield name, row


def _site(rows: Rows, row: int) -> _Site:
    return (int(rows.module[row]), int(rows.op[row]), int(rows.occurrence[row]),
            int(rows.slot[row]))  # fmt: skip


def _wholes(rows: Mapping[int, Rows]) -> dict[str, _Whole]:
    """Parameters that a step ends with in several parts, added up."""
    parts: dict[str, dict[int, int]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for _, of in sorted(rows.items()):
        last = (of.occurrence == 1) | (of.phase == of.codes.number("start"))
        chosen = np.flatnonzero(last & (of.slot == of.codes.number("param")))
        for row in chosen.tolist():
            name = of.text("module", row)
            parts.setdefault(name, {}).setdefault(int(of.form[row]), int(of.digest[row]))
            shapes.setdefault(name, of.shape(row))
    return {
        name: _Whole(sum(of.values()) % _WRAP, shapes[name])
        for name, of in parts.items()
        if len(of) > 1
    }
