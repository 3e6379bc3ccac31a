"""What was compared, what was not, and whether that matters.

1. `covered` counts ranks, steps and records.
2. `notes` lists what was not observed: ranks, steps, gaps, other threads, levels.
3. `why_unverified` gives the reasons for which "no difference" is not "the same".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from bitstep.diff.difference import Covered, Placed
from bitstep.diff.leave_out import has_trained
from bitstep.diff.load import Life, Run
from bitstep.diff.localise import Course
from bitstep.diff.slots import LEVELS
from bitstep.records import WHOLE_RUN
from bitstep.trace.schema import DIED

_SHOWN: Final = 8
_COUNTS: Final = {
    "count.threads": "modules ran on other threads, which are not recorded",
    "count.skipped": "tensors had no bits that could be read",
    "count.compiled": "compiled regions were recorded at their boundary only",
}


def covered(courses: Sequence[Course]) -> Covered:
    steps = set[int]().union(*(course.steps for course in courses))
    levels = [course.level for course in courses if course.level is not None]
    return Covered(
        tuple(course.process for course in courses),
        (min(steps), max(steps)) if steps else None,
        sum(course.equal for course in courses),
        LEVELS[min(levels)] if levels else "",
    )


def why_unverified(
    courses: Sequence[Course], a: Run, b: Run, placed: Sequence[Placed], strict: bool
) -> tuple[str, ...]:
    """Why equal records do not mean equal runs, one line each; none: they do."""
    reasons = []
    if other_layouts(a, b):
        reasons.append("the runs hold logical ranks, written by other processes: not compared")
    elif not any(course.steps for course in courses):
        reasons.append("nothing to pair: the runs have no rank and step in common")
    if damage := [line for run in (a, b) for line in _serious(run)]:
        reasons.append(f"not all of it can be read: {damage[0]}"
                       + (f"; and {len(damage) - 1} more" if len(damage) > 1 else ""))  # fmt: skip
    reasons += list(missing_ranks(a, b))
    reasons += [f"attempt {one.attempt} of {one.run.upper()} could not be placed on the steps"
                for one in placed if not one.known]  # fmt: skip
    reasons += _ended(courses)
    if tail := _tail(courses, a, b):
        reasons.append(tail)
    if strict:
        reasons += [f"{line} (--strict)" for line in _gaps(a, b)]
    return tuple(reasons)


def notes(courses: Sequence[Course], a: Run, b: Run, thorough: bool) -> list[str]:
    """What was not observed or not compared, one line each."""
    found = [*missing_ranks(a, b), *_gaps(a, b), *_counts(a, b), *_evaluated(courses, a, b)]
    found += _ended(courses)
    if tail := _tail(courses, a, b):
        found.append(tail)
    if any(course.unlike for course in courses):
        level = covered(courses).level
        found.append(f"the runs were recorded at different levels: compared down to level {level}")
    if any(course.lost for course in courses):
        found.append("the state after the last step was not recorded: the program had freed it")
    if reordered := sum(course.reordered for course in courses):
        found.append(f"{reordered} scopes ran the same calls in another order; paired by content")
    if not thorough:
        found.append(
            "steps that the indexes call equal were not read: gaps and flips in them (--strict)"
        )
    for course in courses:
        if course.healed and course.parting and course.healed is not course.parting:
            found.append(f"rank {course.process}, step {course.healed.step}: what operations were "
                         "given differs there already, and does not reach the state")  # fmt: skip
    lone = sum(course.extras for course in courses)
    if lone:
        found.append(f"in {lone} steps one run has records that the other lacks")
    return list(dict.fromkeys(found))


def _serious(run: Run) -> list[str]:
    """Damage that may hide something. A life that was killed lacks its end marker; where the next
    one began before that, no step is missing."""
    harmless: set[str] = set()
    for life, following in pairwise(run.lives):
        lines = [f"{run.name}, attempt {life.number}: {line}" for line in life.index.damage]
        covered = all(
            process in following.index.processes
            and len(following.steps(process))
            and len(life.steps(process))
            and life.steps(process)[-1] >= following.steps(process)[0]
            for process in life.index.processes
        )
        if covered and all("no end marker" in line for line in lines):
            harmless.update(lines)
    return [line for line in run.all_damage() if line not in harmless]


def missing_ranks(a: Run, b: Run, *, same_layout: bool = True) -> Iterator[str]:
    """Ranks that recorded nothing, or, where both runs have the same layout, in one run only."""
    for run in (a, b):
        world = max((_world(life) for life in run.lives), default=0)
        missing = sorted(set(range(world)) - run.processes)
        if missing:
            yield f"{run.name.upper()} ran on {world} ranks, {_ranks(missing)} recorded nothing"
    for run, other in ((a, b), (b, a)) if same_layout else ():
        if only := sorted(run.processes - other.processes):
            yield f"only {run.name.upper()} recorded {_ranks(only)}"


def other_layouts(a: Run, b: Run) -> bool:
    """Whether rows belong to logical ranks that other processes wrote in the other run."""
    return a.processes != b.processes and any(
        _is_logical(life) for run in (a, b) for life in run.lives
    )


def _is_logical(life: Life) -> bool:
    for process in life.index.processes[:1]:
        steps = life.steps(process)
        rows = life.rows(process, int(steps[0])) if len(steps) else None
        if rows is not None:
            return bool((rows.rank == WHOLE_RUN).any())
    return False


def _ranks(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(
        map(str, numbers[:_SHOWN])) + more  # fmt: skip


def _world(life: Life) -> int:
    """How many ranks trained together, as the first rank of a life recorded it."""
    for process in life.index.processes[:1]:
        steps = life.steps(process)
        rows = life.rows(process, int(steps[0])) if len(steps) else None
        if rows is not None:
            found = rows.digest[rows.slot == rows.codes.number("world")]
            return int(min(found[0], 1 << 20)) if len(found) else 0
    return 0


def _ended(courses: Sequence[Course]) -> list[str]:
    """Runs that ended within a step, as a program does that dies: compared up to there."""
    ended: dict[tuple[str, int], list[int]] = {}
    for course in courses:
        if course.ended:
            ended.setdefault((course.ended, max(course.steps)), []).append(course.process)
    return [f"{run.upper()} ended within step {step}, before its optimizer, on {_ranks(ranks)}"
            for (run, step), ranks in sorted(ended.items())]  # fmt: skip


def _tail(courses: Sequence[Course], a: Run, b: Run) -> str | None:
    """Steps at the end that only one run has; a head that was not recorded is no gap of it."""
    ends = [max((_end(life, courses) for life in run.lives), default=-1) for run in (a, b)]
    if ends[0] == ends[1] or min(ends) < 0:
        return None
    longer = "A" if ends[0] > ends[1] else "B"
    first, last = min(ends) + 1, max(ends)
    return f"only {longer} has " + (f"step {last}" if first == last else f"steps {first} to {last}")


def _end(life: Life, courses: Sequence[Course]) -> int:
    """The last step that trained on any rank. Rows are read until no other rank can have a later
    one: with thousands of ranks that is nearly all of the time."""
    lasts = {course.process: int(life.steps(course.process)[-1]) for course in courses
             if course.process in life.index.processes
             and len(life.steps(course.process))}  # fmt: skip
    found = -1
    for process, last in sorted(lasts.items(), key=lambda item: -item[1]):
        if last <= found:
            break
        found = max(found, _last_step(life, process)[0])
    return found


def _last_step(life: Life, process: int) -> tuple[int, bool]:
    """The last step that trained, and whether forwards without training were recorded after it."""
    steps = life.steps(process)
    last = int(steps[-1])
    rows = life.rows(process, last) if len(steps) > 1 else None
    if rows is None:
        return last, False
    died = life.gaps.get((process, last), "").startswith(DIED)
    return (last, False) if died or has_trained(rows) else (int(steps[-2]), True)


def _evaluated(courses: Sequence[Course], a: Run, b: Run) -> Iterator[str]:
    """Runs that end with forwards that the other has not."""
    others = [course for course in courses if not _ends_alike(a, b, course.process)]
    ends = [any(_last_step(life, course.process)[1] for life in run.lives[-1:]
                for course in others if course.process in life.index.processes
                and len(life.steps(course.process))) for run in (a, b)]  # fmt: skip
    if ends[0] != ends[1]:
        yield (f"after its last step {'A' if ends[0] else 'B'} ran forwards without training, "
               "which the other did not")  # fmt: skip


def _ends_alike(a: Run, b: Run, process: int) -> bool:
    """Whether the last step of a rank has the same number in both runs, and as many rows: forwards
    alone have fewer than a step."""
    ends = []
    for run in (a, b):
        life = run.lives[-1]
        if process not in life.index.processes or not len(life.steps(process)):
            return False
        entries = life.index.process(process)
        ends.append((int(entries.step[-1]) + life.offset, int(entries.rows[-1])))
    return ends[0] == ends[1]


def _gaps(a: Run, b: Run) -> Iterator[str]:
    for run in (a, b):
        for life in run.lives:
            for (process, step), reason in list(life.gaps.items())[:_SHOWN]:
                yield f"{run.name.upper()}, rank {process}, step {step}: gap: {reason}"


def _counts(a: Run, b: Run) -> Iterator[str]:
    for slot, text in _COUNTS.items():
        counts = [max((life.counts.get(slot, 0) for life in run.lives), default=0)
                  for run in (a, b)]  # fmt: skip
        if any(counts):
            yield f"{text} (A {counts[0]}, B {counts[1]})"
