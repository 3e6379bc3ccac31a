"""What one process left in its parameters and moments, and what it finds there afterwards.

1. Between steps: the end of one step (or the start) against what the optimizer of the next finds.
   Other bits that no recorded operation made in between are a write that was not recorded.
2. Within a step, at level op: the operation that leaves a tensor's final bits is learned from the
   steps in which it does. Where it runs, and the step ends with other bits that no recorded
   operation made whole, something wrote to the tensor after it.

    Writes(slots).step(rows)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from bitstep.diff.rows import Ints, Rows
from bitstep.diff.slots import Class, Slots
from bitstep.records import Flag

_SLOTS: Final = (Class.PARAM, Class.STATE)
Name = tuple[str, str, str]
"""Slot, name, part."""
Content = tuple[int, str, int]
"""Digest, dtype, number of shape and place."""
_Site = tuple[str | int, ...]
"""Phase, pass, module, op, occurrence, slot."""


class Written(NamedTuple):
    """A tensor that holds other bits than the last recorded write left."""

    name: Name
    within: bool
    """Within the step; else between the step before and its optimizer."""
    row: int
    after: str
    """The last place that saw the old bits."""
    before: str
    """The first place that saw the new ones."""
    writers: tuple[str, ...]
    """Recorded operations that wrote into its storage in between."""


class Writes:
    """Follows the tensors of one process. Steps come in order."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._left: dict[Name, Content] = {}
        self._last = -1
        self._makers: dict[Name, _Site] = {}
        self.compared = 0

    def step(self, rows: Rows) -> list[Written]:
        """What was written besides, in this step or before it."""
        if rows.step != self._last + 1:
            # A step that was not recorded may have written anything.
            self._left.clear()
        self._last = rows.step
        classes = self._slots.classes(rows)
        readable = rows.flags & np.uint32(Flag.SKIPPED | Flag.GAP) == 0
        chosen = np.flatnonzero(np.isin(classes, _SLOTS) & readable)
        optimizer = rows.phase[chosen] == rows.codes.number("optimizer")
        first = optimizer & (rows.occurrence[chosen] == 0)
        found = _contents(rows, chosen[first])
        end = _contents(rows, chosen[~first])
        made = _made(rows, np.flatnonzero((classes == Class.OUTPUT) & readable))
        written = [
            *self._between(rows, found, made),
            *self._within(rows, found, end, made),
        ]
        # Only what this step left: one without tensors was recorded at level step.
        self._left = {name: content for name, (content, _) in end.items()}
        return written

    def _between(
        self, rows: Rows, found: dict[Name, tuple[Content, int]], made: dict[Content, Ints]
    ) -> Iterator[Written]:
        for name, (content, row) in found.items():
            left = self._left.get(name)
            if left is None:
                continue
            self.compared += 1
            recorded = made.get(content)
            if left != content and (recorded is None or recorded[0] > row):
                yield Written(name, False, row, *_narrowed(rows, left, content, row), ())

    def _within(
        self, rows: Rows, found: dict[Name, tuple[Content, int]],
        end: dict[Name, tuple[Content, int]], made: dict[Content, Ints],
    ) -> Iterator[Written]:  # fmt: skip
        for name, (content, row) in end.items():
            before = found.get(name)
            if before is None or before[0] == content:
                continue
            recorded = made.get(content)
            if recorded is not None:
                self._makers[name] = _site(rows, int(recorded[-1]))
                self.compared += 1
                continue
            maker = self._maker(rows, name, content)
            if maker is not None:
                self.compared += 1
                writers = _writers(rows, maker)
                yield Written(name, True, row, _words(rows, maker), "the end of the step", writers)

    def _maker(self, rows: Rows, name: Name, content: Content) -> int | None:
        """The row of this step that is known to leave the final bits of a tensor."""
        site = self._makers.get(name)
        if site is None:
            return None
        number = rows.codes.number
        same = rows.form == np.uint64(content[2])
        for column, word in zip(_COLUMNS, site, strict=True):
            same &= getattr(rows, column) == (number(word) if isinstance(word, str) else word)
        at = np.flatnonzero(same)
        return int(at[-1]) if len(at) else None


_COLUMNS: Final = ("phase", "pass_", "module", "op", "occurrence", "slot")


def _site(rows: Rows, row: int) -> _Site:
    return (
        rows.text("phase", row), rows.text("pass_", row), rows.text("module", row),
        rows.text("op", row), int(rows.occurrence[row]), rows.text("slot", row),
    )  # fmt: skip


def _contents(rows: Rows, chosen: Ints) -> dict[Name, tuple[Content, int]]:
    """Content and row of each tensor; the last one, where there are several."""
    return {
        (rows.text("slot", row), rows.text("module", row), rows.text("part", row)): (
            (int(rows.digest[row]), rows.text("dtype", row), int(rows.form[row])),
            row,
        )
        for row in chosen.tolist()
    }


def _made(rows: Rows, outputs: Ints) -> dict[Content, Ints]:
    """The rows that made each content, in order."""
    found: dict[Content, list[int]] = {}
    words = rows.codes.words
    for row, digest, dtype, form in zip(
        outputs.tolist(), rows.digest[outputs].tolist(), rows.dtype[outputs].tolist(),
        rows.form[outputs].tolist(), strict=True,
    ):  # fmt: skip
        found.setdefault((digest, _plain(words[dtype]), form), []).append(row)
    return {content: np.array(at, np.int64) for content, at in found.items()}


def _plain(dtype: str) -> str:
    """Without the order of dimensions that a transposed tensor's dtype carries."""
    return dtype.partition("[")[0]


def _narrowed(rows: Rows, old: Content, new: Content, limit: int) -> tuple[str, str]:
    """The last operation that read the old bits, and the first that read the new ones."""
    digest, form = rows.digest[:limit], rows.form[:limit]
    saw = [
        np.flatnonzero((digest == np.uint64(content[0])) & (form == np.uint64(content[2])))
        for content in (old, new)
    ]
    after = _words(rows, int(saw[0][-1])) if len(saw[0]) else "the end of the step before"
    later = saw[1][saw[1] > saw[0][-1]] if len(saw[0]) else saw[1]
    before = _words(rows, int(later[0])) if len(later) else "the optimizer's begin"
    return after, before


def _writers(rows: Rows, maker: int) -> tuple[str, ...]:
    """Operations that wrote in place to the storage that a row wrote last, after it."""
    reads = np.flatnonzero(rows.writer == rows.seq[maker])
    return tuple(dict.fromkeys(
        rows.text("op", row) for row in reads.tolist() if row > maker and _mutates(rows, row)
    ))  # fmt: skip


def _mutates(rows: Rows, row: int) -> bool:
    """Whether the call of an input wrote to that argument."""
    slot = rows.text("slot", row).replace("in.", "mutated.", 1)
    same = np.ones(len(rows), np.bool_)
    for name in ("phase", "pass_", "microbatch", "module", "op", "occurrence"):
        column = getattr(rows, name)
        same &= column == column[row]
    return bool((same & (rows.slot == rows.codes.number(slot))).any())


def _words(rows: Rows, row: int) -> str:
    op, module = rows.text("op", row), rows.text("module", row)
    where = f" in {module}" if module else ""
    if op:
        return f"{op}{where} ({rows.text('phase', row)})"
    return f"{rows.text('slot', row)} of {module} ({rows.text('phase', row)})"
