"""Tests that look at values: the same ones in another order, a recomputed forward, memory that
nobody wrote. As those of `bitstep.diff.findings`, each gives a `Finding` or None.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from bitstep.diff.case import LETTER, Case, site
from bitstep.diff.difference import Kind
from bitstep.diff.findings import Finding
from bitstep.diff.rows import Rows
from bitstep.diff.slots import Class
from bitstep.records import Flag

_KEEP = "keep the random state for recomputation (preserve_rng_state=True)"
_ADDS = ("add", "sum", "acc", "lerp")


def order(case: Case) -> Finding | None:
    """The same values come to the same operation in another order."""
    op = case.text("op")
    if case.kind is not Class.INPUT or not any(word in op for word in _ADDS):
        return None
    found = [_arrivals(case, side) for side in (0, 1)]
    if not _same_set(found[0], found[1]):
        return None
    count = len(found[0])
    unseen = case.producer(0) is None and case.producer(1) is None
    return Finding(
        Kind.ORDER,
        f"the same {count} values are added in another order by {op}",
        (f"{site(case.sides[0], case.row[0])}: {case.text('slot')} is one of the same {count} "
         "values in both runs, at another place.",
         *(("They were made where nothing was recorded: by other threads, as they finished.",)
           if unseen else ())),
        "certain that the values are the same and their order is not",
        hint="add them in a fixed order: by index, and not as they arrive",
    )  # fmt: skip


def _arrivals(case: Case, side: int) -> list[tuple[int, bool]]:
    """The digests that came to this op in this slot, of this shape, in the step, in order, and
    whether each was hashed there."""
    rows, row = case.sides[side], case.row[side]
    same = np.ones(len(rows), np.bool_)
    for name in ("phase", "module", "op", "slot", "part", "dtype", "form", "pass_"):
        column = getattr(rows, name)
        same &= column == column[row]
    fresh = rows.flags[same] & np.uint32(Flag.CARRIED) == 0
    return list(zip(rows.digest[same].tolist(), fresh.tolist(), strict=True))


def _same_set(a: list[tuple[int, bool]], b: list[tuple[int, bool]]) -> bool:
    """Whether the values are the same and their order is not. A value that was carried may be
    that of a tensor which lay at this address before: it fits any."""
    if len(a) != len(b) or len(a) < 3:
        return False
    counts = [Counter(value for value, fresh in values if fresh) for values in (a, b)]
    lacking = [(counts[0] - counts[1]).total(), (counts[1] - counts[0]).total()]
    carried = [len(values) - count.total() for values, count in zip((a, b), counts, strict=True)]
    moved = sum(one != other for one, other in zip(a, b, strict=True)) >= 2
    common = (counts[0] & counts[1]).total()
    return moved and common >= 2 and lacking[0] <= carried[1] and lacking[1] <= carried[0]


def recompute(case: Case) -> Finding | None:
    """A recomputed forward is not the forward that it repeats."""
    for side in (1, 0):
        found = _unfaithful(case, side)
        if found is None:
            continue
        rows, again = case.sides[side], found[0]
        what = site(rows, again).split(", phase")[0]
        drew = rows.text("slot", again) == "rng"
        detail = (
            f"It draws from another state of the generator than {what} did in the forward."
            if drew else f"{rows.text('slot', again)} is not what the forward had."
        )  # fmt: skip
        other = case.sides[1 - side]
        lone = not np.any(other.pass_ == other.codes.number("recompute"))
        return Finding(
            Kind.RECOMPUTE,
            f"recomputation in {LETTER[side]} "
            + ("draws new random numbers: " if drew else "differs from its forward: ") + what,
            (detail,
             *((f"{LETTER[1 - side]} recomputes nothing.",) if lone else ()),
             "The gradients that follow belong to another forward than the loss."),
            "certain: both are rows of the same run",
            (side, again),
            hint=_KEEP if drew else "",
        )  # fmt: skip
    return None


def _unfaithful(case: Case, side: int) -> tuple[int, int] | None:
    """(recomputed row, forward row) of the first recomputation before the case that differs from
    its own forward."""
    rows = case.sides[side]
    again = np.flatnonzero(rows.pass_ == rows.codes.number("recompute"))
    again = again[again <= case.row[side]]
    if not len(again):
        return None
    primary = np.flatnonzero(rows.pass_ == rows.codes.number("primary"))
    primary = primary[rows.phase[primary] == rows.codes.number("forward")]
    first = {_repeat(rows, row): row for row in reversed(primary.tolist())}
    for row in again.tolist():
        before = first.get(_repeat(rows, row))
        compared = case.classes[side][row] >= Class.RNG
        if before is None or not compared or (rows.flags[row] | rows.flags[before]) & Flag.SKIPPED:
            continue
        # What the other run has as well is not what makes them part.
        if rows.digest[row] != rows.digest[before] and not case.matched(side, row):
            return int(row), int(before)
    return None


def _repeat(rows: Rows, row: int) -> tuple[int, ...]:
    return tuple(
        int(getattr(rows, name)[row])
        for name in ("microbatch", "module", "op", "occurrence", "slot", "part")
    )


def uninitialised(case: Case) -> Finding | None:
    """An input is memory that nobody wrote."""
    blank = np.uint32(Flag.UNINITIALISED | Flag.PARTLY)
    flags = [case.sides[side].flags[case.row[side]] & blank for side in (0, 1)]
    if not any(flags):
        return None
    partly = not any(flag & np.uint32(Flag.UNINITIALISED) for flag in flags)
    return Finding(
        Kind.UNINITIALISED,
        f"{site(case.sides[0], case.row[0])} reads memory that "
        + ("was written only in part" if partly else "no recorded operation wrote"),
        (f"{case.text('slot')} holds whatever was there before: other bits in every process.",),
        "likely: a write that was not recorded would look the same",
        hint="initialise the tensor: torch.zeros in place of torch.empty",
    )
