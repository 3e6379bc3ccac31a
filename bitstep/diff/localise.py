"""Where one process of two runs parts first.

1. Legs (`bitstep.diff.legs`) say which lives are compared on which steps.
2. Steps whose bytes the indexes say are equal are not compared again; their bytes are still read,
   where they are few enough, because a flipped bit is not noticed otherwise.
3. From the first other step on rows are paired (`align`) until a pair differs.
4. What a resumed life began with is compared with what the other run had there (`starts`).

    course = follow(0, run_a, run_b, slots, thorough=True)
    course.parting.step
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from bitstep.diff import leave_out
from bitstep.diff.align import Pairs, pair
from bitstep.diff.legs import Leg, equal_bytes, having, legs, own_steps, start_of
from bitstep.diff.load import Life, Run
from bitstep.diff.rows import Rows
from bitstep.diff.slots import Class, Slots, recorded_level
from bitstep.diff.starts import Changed, compare_start

_GIVEN: Final = (Class.INPUT, Class.ARGS)
_PASSING: Final = (Class.INPUT, Class.ARGS, Class.OUTPUT)
"""What is gone when the step is over."""
_CHAINS: Final = 4
"""Rows of steps that healed which are remembered, the latest."""


@dataclass(frozen=True, slots=True, eq=False)
class Parting:
    """The first step of a process at which rows differ, or a start state that does."""

    process: int
    step: int
    a: Life
    b: Life
    rows_a: Rows
    rows_b: Rows
    pairs: Pairs
    equal_before: int
    """Records compared and equal before it, over all steps."""
    unseeded: frozenset[str] = frozenset()
    """Generators that were in other states before the first step."""
    restart: tuple[Changed, ...] = ()
    """Of a resumed life: what it began with that the other run did not have there."""
    restarted: str = ""
    """a or b: whose life it is that was resumed."""
    extra: Parting | None = None
    """The first step before it at which one run has records that the other lacks."""

    @property
    def order(self) -> tuple[int, bool]:
        return self.step, bool(self.restart)

    @property
    def first(self) -> int | None:
        """The first pair that differs, a tensor rather than the root that is recorded before it;
        None: rows are only missing or extra."""
        found = np.flatnonzero(self.pairs.differ)
        if not len(found):
            return None
        rows, at = self.rows_a, self.pairs.a[found]
        if rows.slot[at[0]] != rows.codes.number("root.grads"):
            return int(found[0])
        grads = rows.slot[at] == rows.codes.number("grad")
        grads &= rows.phase[at] == rows.phase[at[0]]
        return int(found[grads][0]) if grads.any() else int(found[0])


@dataclass(eq=False)
class Course:
    """What following one process through both runs has shown."""

    process: int
    parting: Parting | None = None
    equal: int = 0
    """Records that were equal before the parting, or at all."""
    steps: set[int] = field(default_factory=set)
    """Absolute steps that both have."""
    unseeded: set[str] = field(default_factory=set)
    """Generators that were in other states before the first step: they were not seeded, and what
    they are in later says nothing."""
    began: bool = False
    """What came before the first step was compared."""
    healed: Parting | None = None
    """The first step at which only what operations are given differs, and nothing that stays."""
    extra: Parting | None = None
    """The first step at which one run has records that the other lacks, all others being equal."""
    extras: int = 0
    """Such steps."""
    reordered: int = 0
    """Scopes that ran the same calls in another order."""
    lost: bool = False
    """The state at the end of a last step was not recorded."""
    ended: str = ""
    """a or b: the run that ended within the last step that was compared."""
    unread: int | None = None
    """The first step that could not be read because of damage."""
    level: int | None = None
    """The deepest level that was compared throughout; None: no rows were read."""
    unlike: bool = False
    """Levels differ between the runs somewhere."""

    chains: list[tuple[Parting, Parting]] = field(default_factory=list)
    """Rows of steps that healed, the first and the last step of each; the latest of them."""

    @property
    def chain(self) -> Parting | None:
        """The first of the latest steps in a row that healed."""
        return self.chains[-1][0] if self.chains else None

    def heals(self, parting: Parting) -> None:
        """A step differs without leaving anything that is recorded as state."""
        self.healed = self.healed or parting
        if self.chains and self.chains[-1][1].step == parting.step - 1:
            self.chains[-1] = (self.chains[-1][0], parting)
        else:
            self.chains = [*self.chains[1 - _CHAINS :], (parting, parting)]

    def leads_to(self, parting: Parting) -> Parting | None:
        """The earliest step that healed from which this difference may have come: its bits were
        among those that differed there, or it is the step right before."""
        for first, last in self.chains:
            if last.step == parting.step - 1 or _same_bits(last, parting):
                return first
        return None

    def see_level(self, level: int) -> None:
        """One more step was compared, down to this level."""
        self.level = level if self.level is None else min(self.level, level)


def follow(process: int, a: Run, b: Run, slots: Slots, thorough: bool) -> Course:
    """Compare one process from its first step to where it parts, or to the end."""
    course = Course(process)
    for leg in legs(process, a, b):
        course.steps.update(leg.steps.tolist())
        limit = course.parting.step if course.parting else None
        steps = leg.steps if limit is None else leg.steps[leg.steps <= limit]
        if len(steps):
            _leg(course, leg._replace(steps=steps), slots, thorough)
    for run, other in ((a, b), (b, a)):
        _restarts(course, run, other, slots)
    return course


def _leg(course: Course, leg: Leg, slots: Slots, thorough: bool) -> None:
    """Compare a leg up to where it parts, if that is before what is known already."""
    process = course.process
    same = equal_bytes(leg, process)
    counts = leg.a.index.process(process).rows
    here = np.searchsorted(leg.a.steps(process), leg.steps)
    read = leg.steps if thorough else leg.steps[~same]
    if not thorough:
        course.equal += int(counts[here[same]].sum())
    skipped = set(leg.steps[same].tolist())
    walks = zip(leg.a.walk(process, read), leg.b.walk(process, read), strict=False)
    for (step, rows_a), (_, rows_b) in walks:
        if rows_a is None or rows_b is None:
            course.unread = step if course.unread is None else min(step, course.unread)
            return
        if step in skipped:
            course.equal += int((slots.classes(rows_a) >= Class.RNG).sum())
            course.see_level(recorded_level(rows_a, slots))
            continue
        pairs = _pair(course, leg, step, rows_a, rows_b, slots)
        if leave_out.other_work(pairs, rows_a, rows_b, slots):
            course.steps.discard(step)
            continue
        if not pairs.equal:
            before = course.equal + _equal_until(pairs)
            parting = Parting(
                process, step, leg.a, leg.b, rows_a, rows_b, pairs, before,
                frozenset(course.unseeded), extra=course.extra,
            )  # fmt: skip
            if parting.first is not None and not _heals(pairs, rows_a, slots):
                # What was given in a step before may have come back by another way.
                _keep(course, course.leads_to(parting) or parting)
                return
            if parting.first is not None:
                course.heals(parting)
                continue
            # Calls that only one run made change nothing by themselves: what they led to is sought.
            course.extra = course.extra or parting
            course.extras += 1
        course.equal += len(pairs.a)


def _pair(course: Course, leg: Leg, step: int, a: Rows, b: Rows, slots: Slots) -> Pairs:
    """The pairs of a step, without what is no difference."""
    course.began |= step == 0 or leg.is_start
    pairs = leave_out.unseeded(pair(a, b, slots), a, slots, course.unseeded, course.began)
    pairs, lost = leave_out.lost_end(pairs, a, b, slots)
    course.lost |= lost
    turns = [step in _turns(life, course.process) for life in (leg.a, leg.b)]
    pairs = leave_out.unfinished(pairs, a, b, slots, turns)
    course.ended = pairs.ended
    if any(turns) and not (all(turns) and _both_closed(leg, course.process)):
        pairs = leave_out.without_tails(pairs)
    course.see_level(pairs.level)
    course.unlike |= pairs.unlike
    course.reordered += pairs.reordered
    return pairs


def _both_closed(leg: Leg, process: int) -> bool:
    return all(life.index.process(process).closed for life in (leg.a, leg.b))


def _turns(life: Life, process: int) -> tuple[int, ...]:
    """The steps around which a life begins, if it was resumed, and ends."""
    steps, start = own_steps(life, process)
    if not len(steps):
        return ()
    first = (int(steps[0]),) if start is not None else ()
    return (*first, int(steps[-1]))


def _heals(pairs: Pairs, a: Rows, slots: Slots) -> bool:
    """Whether the step ends with the same state, and what differs first is only what an operation
    was given: buffers that are put together otherwise, data of a later step."""
    classes = slots.classes(a)
    found = classes[pairs.a[pairs.differ]]
    roots = np.any(classes[pairs.a] == Class.ROOT)
    return bool(roots) and found[0] in _GIVEN and bool(np.isin(found, _PASSING).all())


def _same_bits(earlier: Parting, parting: Parting) -> bool:
    """Whether the first pair that differs is one of those that differed earlier."""
    first = parting.first
    if first is None:
        return False
    past = earlier.pairs
    same = earlier.rows_a.digest[past.a] == parting.rows_a.digest[parting.pairs.a[first]]
    same &= earlier.rows_b.digest[past.b] == parting.rows_b.digest[parting.pairs.b[first]]
    return bool((same & past.differ).any())


def _equal_until(pairs: Pairs) -> int:
    differ = np.flatnonzero(pairs.differ)
    return int(differ[0]) if len(differ) else len(pairs.a)


def _keep(course: Course, parting: Parting) -> None:
    if course.parting is None or parting.order < course.parting.order:
        course.parting = parting


def _restarts(course: Course, run: Run, other: Run, slots: Slots) -> None:
    """Compare the start state of every resumed life with the other run's state there."""
    for life in run.lives:
        step = start_of(life, course.process)
        if step is None or (course.parting and course.parting.step < step):
            continue
        against = next(having(other, course.process, step), None)
        if against is None or start_of(against, course.process) == step:
            continue
        start = life.rows(course.process, step)
        end = against.rows(course.process, step)
        if start is None or end is None:
            continue
        following = against.rows(course.process, step + 1)
        changed, equal = compare_start(start, end, following, slots)
        course.equal += equal
        # A program may change buffers between steps: their root alone is no proof, but where the
        # next step differs it is the likely cause.
        only_root = all(item.slot == "root.buffers" for item in changed)
        follows = course.parting is not None and course.parting.step == step + 1
        if changed and (not only_root or follows):
            _keep(course, _restart(course, life, against, start, end, changed, slots))


def _restart(
    course: Course, life: Life, against: Life, start: Rows, end: Rows,
    changed: list[Changed], slots: Slots,
) -> Parting:  # fmt: skip
    is_a = life.run == "a"
    lives = (life, against) if is_a else (against, life)
    rows = (start, end) if is_a else (end, start)
    pairs = pair(*rows, slots)
    step = start.step + life.offset
    return Parting(course.process, step, *lives, *rows, pairs, course.equal,
                   frozenset(course.unseeded), tuple(changed), life.run)  # fmt: skip
