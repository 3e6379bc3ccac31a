"""One parting, looked at: the first pair that differs, its call, and what came before it.

1. `Case` holds the rows of both runs at the step where they part; side 0 is a, side 1 is b.
2. It knows which row is paired with which, and so whether a producer matched.
3. `site` and `where` put a place into words and into data.
"""

from __future__ import annotations

import re
from functools import cached_property
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from bitstep.diff.align import call_of
from bitstep.diff.difference import Bits, Where
from bitstep.diff.load import Life
from bitstep.diff.localise import Parting
from bitstep.diff.rows import Ints, Rows
from bitstep.diff.slots import BOUNDARY, Class, Slots, class_of, named
from bitstep.diff.starts import bits_at
from bitstep.records import Flag

LETTER = "AB"
_DIGITS: Final = re.compile(r"\d+")


class Case:
    """A parting and the questions that explanations ask of it."""

    def __init__(self, parting: Parting, slots: Slots, at: int | None) -> None:
        self.parting = parting
        self.slots = slots
        self.sides: tuple[Rows, Rows] = (parting.rows_a, parting.rows_b)
        self.lives: tuple[Life, Life] = (parting.a, parting.b)
        self.at = at
        """The pair that is explained; None: no pair differs."""

    @cached_property
    def row(self) -> tuple[int, int]:
        """The row of each side that is explained."""
        assert self.at is not None
        return int(self.parting.pairs.a[self.at]), int(self.parting.pairs.b[self.at])

    @cached_property
    def kind(self) -> Class:
        """The class of the row."""
        return Class(int(self.classes[0][self.row[0]]))

    @cached_property
    def classes(self) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
        return self.slots.classes(self.sides[0]), self.slots.classes(self.sides[1])

    @cached_property
    def partner(self) -> tuple[Ints, Ints]:
        """Of each row of a side the row of the other that it is paired with, or -1."""
        pairs = self.parting.pairs
        found = []
        for rows, mine, other in (
            (self.sides[0], pairs.a, pairs.b),
            (self.sides[1], pairs.b, pairs.a),
        ):
            table = np.full(len(rows), -1, np.int64)
            table[mine] = other
            found.append(table)
        return found[0], found[1]

    @cached_property
    def differing(self) -> tuple[Ints, Ints]:
        """The rows of each side whose pair differs, in the order of a."""
        pairs = self.parting.pairs
        return pairs.a[pairs.differ], pairs.b[pairs.differ]

    def text(self, name: str) -> str:
        """A word of the row that is explained."""
        return self.sides[0].text(name, self.row[0])

    def call(self, side: int) -> Ints:
        """The rows of the call that the explained row belongs to."""
        return call_of(self.sides[side], self.row[side])

    def bits(self, side: int) -> Bits:
        return bits_at(self.sides[side], self.row[side])

    def where(self, side: int = 0, row: int | None = None) -> Where:
        """The site of a row; by default of the one that is explained."""
        rows = self.sides[side]
        at = self.row[side] if row is None else row
        return Where(
            self.parting.step, self.parting.process, rows.text("phase", at),
            rows.text("pass_", at), int(rows.microbatch[at]), rows.text("module", at),
            rows.text("op", at), int(rows.occurrence[at]), rows.text("slot", at),
            self.parting.a.number, self.parting.b.number, rows.text("part", at),
        )  # fmt: skip

    def producer(self, side: int) -> int | None:
        """The row of the last recorded write to the storage of the explained row."""
        rows, row = self.sides[side], self.row[side]
        wrote = rows.at_seq(int(rows.writer[row])) if rows.writer[row] >= 0 else None
        # Memory that is used again may have a writer of its former life.
        return wrote if wrote is not None and _may_write(rows, wrote, row) else None

    def source(self, side: int) -> int | None:
        """The last row before the explained one with the same bits: an output or a boundary."""
        rows, row = self.sides[side], self.row[side]
        classes = self.classes[side][:row]
        same = rows.digest[:row] == rows.digest[row]
        same &= (classes == Class.OUTPUT) | np.isin(classes, BOUNDARY)
        same &= rows.flags[:row] & np.uint32(Flag.SKIPPED) == 0
        found = np.flatnonzero(same)
        return int(found[-1]) if len(found) else None

    @cached_property
    def read_before(self) -> int | None:
        """The row of a, or else of b, that was last given these bits in this step, and the same in
        both runs: a tensor that stays, such as a parameter of which each rank keeps a part."""
        for side in (0, 1):
            rows, row = self.sides[side], self.row[side]
            same = (rows.digest[:row] == rows.digest[row]) & (rows.form[:row] == rows.form[row])
            same &= self.classes[side][:row] == Class.INPUT
            found = [at for at in np.flatnonzero(same).tolist() if self.matched(side, at)]
            if found and rows.digest[row] and prod(rows.shape(row)) > 1:
                return found[-1] if side == 0 else int(self.partner[1][found[-1]])
        return None

    @cached_property
    def kept(self) -> tuple[Rows, int] | None:
        """The row of the step before that has the bits which one run still has here and the other
        has not: state, or else an output. None: neither has bits from there, or both do, and the
        program chose."""
        found = [self._before(side) for side in (0, 1)]
        return found[0] or found[1] if None in found else None

    def _before(self, side: int) -> tuple[Rows, int] | None:
        """The last row of the step before with the bits and the size of the explained row."""
        rows, row = self.sides[side], self.row[side]
        past = self.lives[side].rows(self.parting.process, self.parting.step - 1)
        if past is None or not rows.digest[row] or prod(rows.shape(row)) < 2:
            return None
        classes = self.slots.classes(past)
        is_state = np.isin(classes, BOUNDARY)
        same = (past.digest == rows.digest[row]) & (is_state | (classes == Class.OUTPUT))
        found = [at for at in np.flatnonzero(same).tolist()
                 if prod(past.shape(at)) == prod(rows.shape(row))]  # fmt: skip
        best = max(found, key=lambda at: (is_state[at], at), default=None)
        return None if best is None else (past, best)

    def matched(self, side: int, row: int) -> bool:
        """Whether a row has a partner with the same bits."""
        other = self.partner[side][row]
        return other >= 0 and row not in self.differing[side]

    def tensor(self) -> tuple[str, str] | None:
        """(name, what) of the tensor of state that the explained row is about, where known."""
        slot = self.text("slot")
        if self.kind in BOUNDARY:
            return self.text("module"), slot
        found = named(slot)
        if found:
            return found
        inside = self.tensor_of(0, self.row[0]) or self.tensor_of(1, self.row[1])
        return inside or self._kept_tensor()

    def _kept_tensor(self) -> tuple[str, str] | None:
        """The tensor of state that still had these bits at the end of the step before."""
        if self.kept is None or not (self.text("op") or self.kind is Class.OUTPUT):
            return None
        rows, row = self.kept
        name, slot = rows.text("module", row), rows.text("slot", row)
        return (name, slot) if class_of(slot) in BOUNDARY else None

    def tensor_of(self, side: int, row: int) -> tuple[str, str] | None:
        """The tensor of state whose boundary row, before `row`, has the bits of `row`. Of several
        with these bits (zeros), the one whose next boundary differs, if that is one."""
        rows = self.sides[side]
        before = np.isin(self.classes[side][:row], BOUNDARY)
        found = np.flatnonzero(before & (rows.digest[:row] == rows.digest[row]))
        names = list(
            dict.fromkeys((rows.text("module", at), rows.text("slot", at)) for at in found.tolist())
        )
        if len(names) > 1:
            names = [name for name in names if self._differs_after(side, name, row)]
        return names[0] if len(names) == 1 else None

    def _differs_after(self, side: int, name: tuple[str, str], row: int) -> bool:
        rows, differ = self.sides[side], self.differing[side]
        later = differ[differ > row]
        same = rows.module[later] == rows.codes.number(name[0])
        return bool((same & (rows.slot[later] == rows.codes.number(name[1]))).any())


def _may_write(rows: Rows, wrote: int, row: int) -> bool:
    """Whether a write was to what is read: of the same dtype, or seen as another and as large."""
    dtypes = [rows.text("dtype", at).partition("[")[0] for at in (wrote, row)]
    bits = [int((_DIGITS.findall(word) or [8])[0]) for word in dtypes]
    sizes = [prod(rows.shape(at)) * one for at, one in zip((wrote, row), bits, strict=True)]
    return dtypes[0] == dtypes[1] or sizes[0] == sizes[1]


def site(rows: Rows, row: int) -> str:
    """A row's place in words: "aten.add_.Tensor #3 in Net.0, phase backward"."""
    op, module, slot = rows.text("op", row), rows.text("module", row), rows.text("slot", row)
    phase, pass_ = rows.text("phase", row), rows.text("pass_", row)
    what = f"{op} #{int(rows.occurrence[row])}" if op else f"{slot}"
    inside = f" in {module}" if module and op else f" {module}" if module else ""
    passing = f" ({pass_})" if pass_ != "primary" else ""
    micro = int(rows.microbatch[row])
    which = f", microbatch {micro}" if micro > 0 else ""
    return f"{what}{inside}, phase {phase}{passing}{which}"
