"""The steps of a run against those of the run that it is expected to repeat, as they come.

1. The step of the other run is looked up: in its last life that took it.
2. Rows are paired as `bitstep diff` pairs them; the first pair that differs is reported, once per
   rank. `bitstep diff` then says what led to it.

    Expected(slots).step(life, other, 3, {0: rows_0})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from bitstep.check.finding import Finding, Kind, Place, ranks_text
from bitstep.check.words import place
from bitstep.diff import leave_out
from bitstep.diff.align import Pairs, pair
from bitstep.diff.load import Life, Run
from bitstep.diff.rows import Rows
from bitstep.diff.slots import Class, Slots

_PASSING: Final = (Class.INPUT, Class.ARGS, Class.OUTPUT)
"""What is gone when a step is over."""


class Expected:
    """Compares steps with those of another run, which is whole."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._parted: set[int] = set()
        self._unseeded: dict[int, set[str]] = {}
        self.compared = 0
        self.steps: set[int] = set()
        self.missing: set[int] = set()
        """Steps that the other run does not have."""

    def step(self, life: Life, other: Run, step: int, rows: Mapping[int, Rows]) -> list[Finding]:
        """The ranks that part in this step, as findings."""
        if life.offset and step == life.offset:
            return []  # the start of a resumed life, which the other run does not have
        groups: dict[tuple[Place, str], list[int]] = {}
        for process, mine in sorted(rows.items()):
            theirs = self._theirs(other, process, step)
            if theirs is None:
                self.missing.add(step)
                continue
            self.steps.add(step)
            found = self._compare(process, mine, theirs, _turns(life, process, step, other))
            if found and process not in self._parted:
                self._parted.add(process)
                groups.setdefault(found, []).append(process)
        return [_finding(life.number, step, *key, tuple(ranks)) for key, ranks in groups.items()]

    def _theirs(self, other: Run, process: int, step: int) -> Rows | None:
        for life in reversed(other.lives):
            if life.offset and step == life.offset:
                continue
            rows = life.rows(process, step)
            if rows is not None:
                return rows
        return None

    def _compare(
        self, process: int, mine: Rows, theirs: Rows, turns: bool
    ) -> tuple[Place, str] | None:
        known = self._unseeded.setdefault(process, set())
        pairs = pair(mine, theirs, self._slots)
        pairs = leave_out.unseeded(pairs, mine, self._slots, known, 0 in self.steps)
        pairs, _ = leave_out.lost_end(pairs, mine, theirs, self._slots)
        if turns:
            pairs = leave_out.without_tails(pairs)
        differ = np.flatnonzero(pairs.differ)
        self.compared += len(pairs.a) if not len(differ) else int(differ[0])
        if len(differ) and not self._passes(pairs, mine):
            return place(mine, int(pairs.a[differ[0]])), "has other bits than expected"
        return _only(pairs, mine, theirs) if not len(differ) else None

    def _passes(self, pairs: Pairs, mine: Rows) -> bool:
        """Whether the step ends in the expected state all the same: only operations were given,
        or gave, something else, such as a buffer that was put together otherwise."""
        classes = self._slots.classes(mine)[pairs.a]
        ends = bool(np.any(classes == Class.ROOT))
        return ends and bool(np.isin(classes[pairs.differ], _PASSING).all())


def _only(pairs: Pairs, mine: Rows, theirs: Rows) -> tuple[Place, str] | None:
    if len(pairs.only_a):
        return place(mine, int(pairs.only_a[0])), "is not in the expected run"
    if len(pairs.only_b):
        return place(theirs, int(pairs.only_b[0])), "is in the expected run alone"
    return None


def _turns(life: Life, process: int, step: int, other: Run) -> bool:
    """Whether a life ends with this step, or began just before it: what the program does besides
    its steps is there, and not the same in a run that goes on."""
    for it in (life, *other.lives):
        if process not in it.index.processes:
            continue
        last = it.steps(process)[-1:].tolist()
        if step in last or (it.offset and step == it.offset + 1):
            return True
    return False


def _finding(attempt: int, step: int, at: Place, what: str, ranks: tuple[int, ...]) -> Finding:
    where = " in ".join(word for word in (at.op, at.module) if word) or "the step"
    title = f"step {step} of {ranks_text(ranks)}: {at.slot} of {where}, phase {at.phase}, {what}"
    why = "It is the first record of that rank that is not as expected."
    sure = "certain that they part here; what led to it is for bitstep diff to say"
    return Finding(Kind.EXPECTED, attempt, step, ranks, True, at, title, (why,), sure)
