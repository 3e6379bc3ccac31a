"""Place the lives of two runs on the same absolute steps.

1. A life whose steps begin at 0 does not know how many steps came before it. Its start state is
   looked for among the states that steps ended with: its own earlier lives first, then the other
   run. Equal state roots of the indexes decide, or the roots of parameters and optimizer state.
2. Where only the parameters are found, or only the optimizer state, the life is placed by them, and
   that is said: what else it began with is a finding.
3. Where nothing is found, it is placed after the life before it, and that is said, too.
4. First lives both stand at 0, unless one began with a state that the other reached later.

    place(run_a, run_b) == (Placed("b", 1, 6, "by its parameters and optimizer state", True),)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from bitstep.diff.difference import Placed
from bitstep.diff.leave_out import NO_TENSORS
from bitstep.diff.load import Life, Run
from bitstep.diff.rows import Rows

_STREAMS: Final = ("root.params", "root.optimizer")
_LOOKED: Final = 4
"""Processes whose roots are looked for, at most."""


class _Match(NamedTuple):
    step: int
    """Absolute."""
    how: str
    life: Life


def place(a: Run, b: Run) -> tuple[Placed, ...]:
    """Set the offset of every life, and say how each that begins again was placed."""
    found = [*_first(a, b)]
    for run, other in ((a, b), (b, a)):
        for at, life in enumerate(run.lives[1:], 1):
            if _begins_at_zero(life):
                found.append(_later(run, life, run.lives[:at], other.lives))
    return tuple(found)


def _begins_at_zero(life: Life) -> bool:
    # Of any process: the index of the first may be damaged.
    return any(life.index.process(p).step[:1].tolist() == [0] for p in life.index.processes)


def _first(a: Run, b: Run) -> Iterator[Placed]:
    """The first lives of both: one of them may be a resumed run that was recorded alone."""
    one, two = a.lives[0], b.lives[0]
    if not (_begins_at_zero(one) and _begins_at_zero(two)):
        return
    if _same_parameters(one, two):
        return
    for run, life, other in ((b, two, a), (a, one, b)):
        match = _search(life, other.lives[:1])
        if match:
            life.offset = match.step
            yield _placed(run, life, match)
            return


def _later(run: Run, life: Life, own: Sequence[Life], other: Sequence[Life]) -> Placed:
    """Place a later life; `own` are the lives before it."""
    match = _search(life, [*reversed(own), *other])
    if match:
        life.offset = match.step
        return _placed(run, life, match)
    ends = [int(before.steps(p)[-1]) for before in own for p in before.index.processes
            if len(before.steps(p))]  # fmt: skip
    life.offset = max(ends, default=0)
    how = (
        "after the last step of the attempt before it, which is assumed: its start state is no "
        "recorded state of either run"
    )
    return Placed(run.name, life.number, life.offset, how, known=False)


def _placed(run: Run, life: Life, match: _Match) -> Placed:
    whose = "its own" if match.life.run == run.name else f"{match.life.run.upper()}'s"
    how = f"{match.how}, which are those at the end of {whose} step {match.step}"
    return Placed(run.name, life.number, match.step, how, known=True)


def _same_parameters(a: Life, b: Life) -> bool:
    for process in _looked(a, b):
        one, two = _roots(a, process, 0), _roots(b, process, 0)
        if one[0] is None or one[0] == two[0]:
            return True
    return not _looked(a, b)


def _looked(a: Life, b: Life) -> list[int]:
    return sorted(set(a.index.processes) & set(b.index.processes))[:_LOOKED]


def _search(life: Life, among: Sequence[Life]) -> _Match | None:
    """Where the start state of a life was reached before; the best match of all lives."""
    by_root = next(filter(None, (_by_index(life, other) for other in among)), None)
    if by_root:
        return by_root
    partial = None
    for other in among:
        for process in _looked(life, other):
            match, whole = _by_roots(life, other, process)
            if match and whole:
                return match
            partial = partial or match
            if match:
                break
    return partial


def _by_index(life: Life, other: Life) -> _Match | None:
    """The last step of `other` that ended with the state root that `life` began with."""
    for process in _looked(life, other):
        mine, theirs = life.index.process(process), other.index.process(process)
        if not len(mine.step) or mine.root[0] in (0, NO_TENSORS):
            continue
        equal = np.flatnonzero((theirs.root == mine.root[0]) & (theirs.step + other.offset > 0))
        if len(equal):
            step = int(theirs.step[equal[-1]]) + other.offset
            return _Match(step, "by its parameters, optimizer state and buffers", other)
    return None


def _by_roots(life: Life, other: Life, process: int) -> tuple[_Match | None, bool]:
    """The last step whose roots are those that `life` began with; False: only some of them."""
    params, optimizer = _roots(life, process, life.offset)
    if params is None:
        return None, False
    only = moments = both = None
    for step, rows in other.walk(process, other.steps(process)):
        if rows is None or step == 0:
            continue
        theirs = _roots_of(rows)
        same_moments = optimizer not in (None, NO_TENSORS) and theirs[1] == optimizer
        if theirs[0] == params and same_moments:
            both = _Match(step, "by its parameters and optimizer state", other)
        elif theirs[0] == params:
            only = _Match(step, "by its parameters alone", other)
        elif same_moments:
            moments = _Match(step, "by its optimizer state alone", other)
    return both or only or moments, both is not None


def _roots(life: Life, process: int, step: int) -> tuple[int | None, ...]:
    rows = life.rows(process, step)
    return (None, None) if rows is None else _roots_of(rows)


def _roots_of(rows: Rows) -> tuple[int | None, ...]:
    found = []
    for slot in _STREAMS:
        at = np.flatnonzero(rows.slot == rows.codes.number(slot))
        found.append(int(rows.digest[at[-1]]) if len(at) else None)
    return tuple(found)
