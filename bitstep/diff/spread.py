"""From rank to rank: what a collective or p2p operation carried, and who was first.

1. A collective whose output differs is looked up on every other member, in the same step.
2. A member that gave it other inputs is where the difference came from: the rank is a receiver.
3. Where all members gave equal inputs the collective itself is the cause; where a member was not
   recorded nobody can tell.

    came = came_from(case, run_a, run_b)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from bitstep.diff.case import Case, site
from bitstep.diff.difference import Kind
from bitstep.diff.findings import Finding
from bitstep.diff.load import Life, Run
from bitstep.diff.rows import Rows
from bitstep.diff.slots import BOUNDARY, Class

_NUMBER: Final = re.compile(r"(\d+)(?:-(\d+))?")
_MOST: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Came:
    """What the other members of a collective had, as far as they were recorded."""

    members: tuple[int, ...]
    sources: tuple[int, ...]
    """Members whose inputs differ between the runs."""
    unknown: tuple[int, ...]
    """Members of which it is not known."""


def is_collective(case: Case) -> bool:
    """Whether the case is a row of a collective or p2p operation."""
    rows, row = case.sides[0], case.row[0]
    return case.kind in (Class.INPUT, Class.OUTPUT) and bool(case.slots.collective(rows)[row])


def came_from(case: Case, a: Run, b: Run) -> Came:
    """Look the collective up on its other members."""
    members = members_of(case.text("module"))
    sources, unknown = [], []
    for member in members or ():
        if member == case.parting.process:
            continue
        given = [_given(run, member, case, side) for side, run in enumerate((a, b))]
        if None in given:
            unknown.append(member)
        elif given[0] != given[1]:
            sources.append(member)
    return Came(members, tuple(sources), tuple(unknown))


def members_of(text: str) -> tuple[int, ...]:
    """The ranks in "0,1,4-7"; none for a text that is not such a list."""
    found: list[int] = []
    for word in text.split(","):
        match = _NUMBER.fullmatch(word)
        if not match:
            return ()
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < _MOST:
            return ()
        found += range(first, last + 1)
    return tuple(found)


def _given(run: Run, member: int, case: Case, side: int) -> list[tuple[int, ...]] | None:
    """What a member gave to the collective of the case; None where that was not recorded."""
    for life in _lives(run, member, case.lives[side]):
        rows = life.rows(member, case.parting.step)
        found = None if rows is None else _inputs(rows, case, side)
        if found is not None:
            return found
    return None


def _lives(run: Run, member: int, first: Life) -> Sequence[Life]:
    others = [life for life in reversed(run.lives) if life is not first]
    return [life for life in (first, *others) if member in life.index.processes]


def _inputs(rows: Rows, case: Case, side: int) -> list[tuple[int, ...]] | None:
    """What a member gave, which may be nothing: to a broadcast, but for its source."""
    mine, row = case.sides[side], case.row[side]
    op = mine.text("op", row)
    same = rows.module == mine.module[row]
    sends = "recv" in op
    if sends:
        same &= np.array([".send" in word or "isend" in word for word in rows.codes.words])[rows.op]
    else:
        same &= rows.op == mine.op[row]
    same &= rows.occurrence == mine.occurrence[row]
    same &= rows.phase == mine.phase[row]
    if not sends:
        same &= rows.microbatch == mine.microbatch[row]
    if not same.any():
        return None
    chosen = np.flatnonzero(same & (case.slots.classes(rows) == Class.INPUT))
    return [(int(rows.slot[r]), int(rows.digest[r]), int(rows.dtype[r]), int(rows.form[r]))
            for r in chosen.tolist()]  # fmt: skip


def delivered(case: Case, came: Came) -> Finding | None:
    """The finding about a collective whose output differs though this rank's inputs do not, or
    whose input is a buffer that is put together otherwise."""
    what = site(case.sides[0], case.row[0])
    is_input = case.kind is Class.INPUT
    if is_input and not _is_repacked(case):
        return None
    if came.sources and (not is_input or _later_differs(case)):
        ranks = ", ".join(map(str, came.sources))
        return Finding(
            Kind.RECEIVER,
            f"it came through {what} from rank {ranks}",
            (f"Rank {ranks} gave other bits to it.",),
            "certain",
        )
    if is_input and not (came.unknown and _later_differs(case)):
        return _repacked(case)
    if came.unknown or not came.members:
        whom = f"rank {', '.join(map(str, came.unknown[:8]))}" if came.unknown else "its members"
        return Finding(
            Kind.COLLECTIVE,
            f"{what} gives other bits",
            (f"This rank gave it equal inputs; {whom} did not record what they gave.",),
            "could not tell: the collective itself, or a rank that was not recorded",
            hint="ranks",
        )
    count = len(came.members)
    return Finding(
        Kind.COLLECTIVE,
        f"{what} gives other bits for equal inputs",
        (f"All {count} members gave equal inputs.",
         "The order in which a collective sums may depend on algorithm, topology and timing."),
        "certain: the inputs of all members were recorded",
        hint="fix the algorithm of the collective (NCCL_ALGO, NCCL_PROTO), and the layout",
    )  # fmt: skip


def _is_repacked(case: Case) -> bool:
    """Whether the last write to the input matched, and was to a part of it."""
    known = [case.producer(side) for side in (0, 1)]
    return all(
        row is not None
        and case.matched(side, row)
        and prod(case.sides[side].shape(row)) < prod(case.sides[side].shape(case.row[side]))
        for side, row in enumerate(known)
    )


def _later_differs(case: Case) -> bool:
    """Whether a tensor of state differs later in the step."""
    rows = case.differing[0]
    later = rows[rows > case.row[0]]
    return bool(np.isin(case.classes[0][later], (*BOUNDARY, Class.ROOT)).any())


def _repacked(case: Case) -> Finding:
    what = site(case.sides[0], case.row[0])
    return Finding(
        Kind.ORDER,
        f"the buffer that {what} is given is put together otherwise",
        ("Everything that was written to it is equal; it lies at other places in it.",
         "DDP does so after its first step: a run that was resumed begins with other buckets."),
        "likely: an unseen write to the buffer would look the same",
    )  # fmt: skip
