"""One step of all ranks as readings: a tensor of the state at one place of the step, on each rank.

1. The rows of state of every process are put together: parameters, gradients before the optimizer,
   moments, buffers; where a step has none of these, the roots over them.
2. They are sorted by (place in the step, tensor), and by rank within.
3. Each group is a `Reading`: who holds the tensor, and who of them has the same bits.

    for reading in readings(3, {0: rows_0, 1: rows_1}, slots): ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from bitstep.diff.leave_out import NO_TENSORS
from bitstep.diff.rows import Ints, Rows, Sums, join
from bitstep.diff.slots import BOUNDARY, Class, Slots
from bitstep.records import Flag

_ROOTS: Final = ("root.params", "root.grads", "root.optimizer", "root.buffers")
_PROVE: Final = ("param", "grad", "root.params", "root.grads", "buffer", "attr", "root.buffers")
"""Slots whose readings prove replicas; moments do not: a step counter agrees everywhere."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A tensor at one place of a step, on every rank that holds it."""

    name: str
    """What its proof goes by: a parameter for itself, its gradient and its moments."""
    slot: str
    module: str
    form: int
    """A number for shape and place: ranks with other shards hold other tensors."""
    step: int
    order: int
    """Place within the step."""
    phase: str
    occurrence: int
    holders: tuple[int, ...]
    contents: bytes
    pattern: tuple[int, ...]

    @property
    def proves(self) -> bool:
        return self.slot in _PROVE


def readings(step: int, rows: Mapping[int, Rows], slots: Slots) -> Iterator[Reading]:
    """The readings of one step, in the order in which the first holder took them."""
    parts = [(process, of, _chosen(of, slots)) for process, of in sorted(rows.items())]
    parts = [part for part in parts if len(part[2])]
    if not parts:
        return
    keys = np.concatenate([_keys(of, chosen) for _, of, chosen in parts])
    holders = np.concatenate([_holders(*part) for part in parts])
    contents = np.concatenate(
        [join(of.digest[chosen], of.dtype[chosen]) for _, of, chosen in parts]
    )
    within = np.concatenate([chosen for _, _, chosen in parts])
    owner = np.repeat(np.arange(len(parts)), [len(chosen) for _, _, chosen in parts])
    order = np.lexsort((holders, keys))
    sorted_keys = keys[order]
    groups = np.split(order, np.flatnonzero(sorted_keys[1:] != sorted_keys[:-1]) + 1)
    for group in sorted(groups, key=lambda members: int(within[members[0]])):
        first = int(group[0])
        of = parts[owner[first]][1]
        yield _reading(step, of, int(within[first]), holders[group], contents[group])


def _reading(step: int, rows: Rows, row: int, holders: Ints, contents: Sums) -> Reading:
    slot, module = rows.text("slot", row), rows.text("module", row)
    return Reading(
        _name(slot, module), slot, module, int(rows.form[row]), step, row, rows.text("phase", row),
        int(rows.occurrence[row]), tuple(holders.tolist()), contents.tobytes(),
        pattern_of(contents),
    )  # fmt: skip


def pattern_of(contents: Sums) -> tuple[int, ...]:
    """Per element the place of the first that equals it.

    >>> pattern_of(np.array([7, 9, 7], np.uint64))
    (0, 1, 0)
    """
    if len(contents) and (contents == contents[0]).all():
        return (0,) * len(contents)
    first: dict[int, int] = {}
    return tuple(first.setdefault(value, at) for at, value in enumerate(contents.tolist()))


def _name(slot: str, module: str) -> str:
    if slot in ("buffer", "attr"):
        return f"{module} ({slot})"
    if slot == "root.buffers":
        return "all buffers"
    return module or "the whole state"


def _chosen(rows: Rows, slots: Slots) -> Ints:
    classes = slots.classes(rows)
    state = np.isin(classes, BOUNDARY)
    # After each backward gradients may not be reduced yet; before the optimizer they are.
    optimizer = rows.phase == rows.codes.number("optimizer")
    state &= (classes != Class.GRAD) | optimizer
    readable = (rows.flags & np.uint32(Flag.SKIPPED | Flag.GAP)) == 0
    if state.any():
        return np.flatnonzero(state & readable)
    roots = [rows.codes.number(slot) for slot in _ROOTS]
    # A program may free its model before its last step is recorded.
    readable &= rows.digest != np.uint64(NO_TENSORS)
    return np.flatnonzero(np.isin(rows.slot, roots) & readable)


def _keys(rows: Rows, chosen: Ints) -> Sums:
    """A number per (place in the step, tensor)."""
    columns = [
        getattr(rows, name)[chosen]
        for name in ("phase", "occurrence", "microbatch", "module", "slot", "part")
    ]
    start = np.zeros(len(chosen), np.uint64)
    return join(start, *columns, rows.form[chosen].view(np.int64))


def _holders(process: int, rows: Rows, chosen: Ints) -> Ints:
    """Who holds the tensor of a row: its rank, or the process where it belongs to no rank."""
    rank = rows.rank[chosen].astype(np.int64)
    found: Ints = np.where(rank < 0, process, rank)
    return found
