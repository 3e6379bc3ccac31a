"""The state that a resumed life began with, against the state that the other run had there.

1. The rows of phase `start` are compared tensor by tensor: parameters, moments, buffers, plain
   tensor attributes; only where none of these were recorded, by the roots.
2. The other run has the state twice: at the end of that step, and where the next one begins. What
   equals either is the same: a program may change it in between.
3. Equal sets of moments under other names are told as what they are: exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from bitstep.diff.difference import Bits
from bitstep.diff.rows import Rows
from bitstep.diff.slots import BOUNDARY, Class, Slots
from bitstep.records import Flag

Name = tuple[str, str, str, int]
"""Slot, module, part, rank."""
_ROOTS: Final = ("root.params", "root.optimizer", "root.buffers")


@dataclass(frozen=True, slots=True)
class Changed:
    """One tensor that a life began with, and the other run's in its place."""

    slot: str
    name: str
    other: Bits | None
    mine: Bits
    is_root: bool = False
    part: str = "bits"


def compare_start(
    start: Rows, end: Rows | None, following: Rows | None, slots: Slots
) -> tuple[list[Changed], int]:
    """Tensors that differ, and how many are equal. `end` is the other run's step at which the
    life was placed, `following` the one after it."""
    mine = _state(start, slots, last=True)
    others = [_state(end, slots, last=True)] if end is not None else []
    if following is not None:
        others.append(_state(following, slots, last=False))
    changed, equal = [], 0
    for name, row in mine.items():
        candidates = [found for found in (other.get(name) for other in others) if found]
        if not candidates or start.flags[row[0]] & Flag.SKIPPED:
            continue
        if any(_content(start, row[0]) == content for _, _, content in candidates):
            equal += 1
            continue
        at, rows = candidates[0][0], candidates[0][1]
        bits = bits_at(rows, at), bits_at(start, row[0])
        changed.append(Changed(name[0], name[1], *bits, part=name[2]))
    if not mine or (not equal and not changed):
        return _roots(start, end)
    return changed, equal


def bits_at(rows: Rows, row: int) -> Bits:
    """What a row says, for a person."""
    return Bits(
        int(rows.digest[row]),
        rows.text("dtype", row),
        rows.shape(row),
        int(rows.seq[row]),
        rows.value(row),
    )


def _state(
    rows: Rows, slots: Slots, last: bool
) -> dict[Name, tuple[int, Rows, tuple[int, int, int]]]:
    """The last, or first, row of every tensor of state in a step; gradients are none."""
    classes = slots.classes(rows)
    chosen = np.flatnonzero(np.isin(classes, BOUNDARY) & (classes != Class.GRAD))
    found: dict[Name, tuple[int, Rows, tuple[int, int, int]]] = {}
    for row in chosen.tolist():
        words = rows.text("slot", row), rows.text("module", row), rows.text("part", row)
        name = (*words, int(rows.rank[row]))
        if last or name not in found:
            found[name] = (row, rows, _content(rows, row))
    return found


def _content(rows: Rows, row: int) -> tuple[int, int, int]:
    return int(rows.digest[row]), int(rows.dtype[row]), int(rows.form[row])


def _roots(start: Rows, end: Rows | None) -> tuple[list[Changed], int]:
    """The same by the roots alone."""
    changed, equal = [], 0
    for slot in _ROOTS if end is not None else ():
        assert end is not None
        number = start.codes.number(slot)
        mine, other = (np.flatnonzero(rows.slot == number) for rows in (start, end))
        if not len(mine) or not len(other):
            continue
        if start.digest[mine[-1]] == end.digest[other[-1]]:
            equal += 1
        else:
            bits = bits_at(end, int(other[-1])), bits_at(start, int(mine[-1]))
            changed.append(Changed(slot, "", *bits, is_root=True))
    return changed, equal


def exchanged(changed: list[Changed]) -> list[tuple[str, str, str]]:
    """(slot, name, name in the other run) of tensors whose bits another name has there."""
    found = []
    for slot in dict.fromkeys(item.slot for item in changed):
        mine = [item for item in changed if item.slot == slot]
        owners = {item.other.digest: item.name for item in mine if item.other}
        if len(owners) == len(mine) > 1 and {item.mine.digest for item in mine} == set(owners):
            found += [(slot, item.name, owners[item.mine.digest]) for item in mine]
    return found
