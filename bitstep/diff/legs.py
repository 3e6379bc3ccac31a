"""Which life of one run is compared with which of the other, and on which steps.

1. A life that was resumed began with the end state of a step that it did not take.
2. A step that several lives took is compared with the one that took it last in the other run.
3. What the indexes prove equal is told apart: equal bytes after equal words.

    for leg in legs(0, run_a, run_b):
        print(leg.a.number, leg.b.number, leg.steps)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bitstep.diff.load import Life, Run
from bitstep.diff.rows import Ints, Mask


class Leg(NamedTuple):
    """Two lives and the absolute steps on which they are compared."""

    a: Life
    b: Life
    steps: Ints
    is_start: bool
    """Both lives begin there: their `start` rows are compared as any others."""


def legs(process: int, a: Run, b: Run) -> list[Leg]:
    """Which lives are compared on which steps, the earliest first."""
    own = [[(life, *own_steps(life, process)) for life in run.lives
            if process in life.index.processes] for run in (a, b)]  # fmt: skip
    last = [_last_owner([(life, steps) for life, steps, _ in mine]) for mine in own]
    found = []
    for life_a, steps_a, start_a in own[0]:
        for life_b, steps_b, start_b in own[1]:
            keep = _wanted(_common(steps_a, steps_b), (life_a, life_b), last)
            if len(keep):
                found.append(Leg(life_a, life_b, keep, False))
            if start_a is not None and start_a == start_b:
                found.append(Leg(life_a, life_b, np.array([start_a]), True))
    return sorted(found, key=lambda leg: int(leg.steps[0]))


def start_of(life: Life, process: int) -> int | None:
    """The absolute step at which a resumed life took its start state; None of a first life."""
    return own_steps(life, process)[1] if process in life.index.processes else None


def own_steps(life: Life, process: int) -> tuple[Ints, int | None]:
    """The steps that a life took itself, and the one whose end state it began with."""
    steps = life.steps(process)
    if not len(steps):
        return steps, None
    first = int(steps[0])
    resumed = first > 0 and (first == life.offset or _only_start(life, process, first))
    return (steps[1:], first) if resumed else (steps, None)


def _only_start(life: Life, process: int, step: int) -> bool:
    if life.number == 0:
        return False
    rows = life.rows(process, step)
    return rows is not None and len(rows) > 0 and all(rows.phase == rows.codes.number("start"))


def _common(a: Ints, b: Ints) -> Ints:
    return a if np.array_equal(a, b) else np.intersect1d(a, b)


def _wanted(steps: Ints, lives: tuple[Life, Life], last: list[dict[int, Life]]) -> Ints:
    """The steps on which two lives are compared: one of them took the step last in its run."""
    if not any(last):
        return steps
    keep = [any(owners.get(step, life) is life for owners, life in zip(last, lives, strict=True))
            for step in steps.tolist()]  # fmt: skip
    return steps[np.array(keep, np.bool_)]


def _last_owner(lives: list[tuple[Life, Ints]]) -> dict[int, Life]:
    """Step -> the life that took it last; empty for a run of one life, which took them all."""
    if len(lives) < 2:
        return {}
    return {step: life for life, steps in lives for step in steps.tolist()}


def equal_bytes(leg: Leg, process: int) -> Mask:
    """Of each step of a leg, whether the indexes prove its rows equal: equal bytes after equal
    words, which stand in the earlier steps of the same file."""
    one, two = leg.a.index.process(process), leg.b.index.process(process)
    size = min(len(one.step), len(two.step))
    if leg.a.offset != leg.b.offset or not size:
        return np.zeros(len(leg.steps), np.bool_)
    aligned = np.logical_and.accumulate(one.step[:size] == two.step[:size])
    aligned &= np.logical_and.accumulate(_file(one.end[:size]) == _file(two.end[:size]))
    equal = aligned & (one.bytes_sum[:size] == two.bytes_sum[:size])
    brings = (one.dictionaries[:size] > 0) | (two.dictionaries[:size] > 0)
    words = ~brings | equal
    files = _file(one.end[:size])
    for start in np.flatnonzero(np.r_[True, files[1:] != files[:-1]]):
        end = int(np.searchsorted(files, files[start], side="right"))
        words[start:end] = np.logical_and.accumulate(words[start:end])
    proven = one.step[:size][equal & words] + leg.a.offset
    return np.isin(leg.steps, proven, assume_unique=True)


def _file(ends: np.ndarray) -> Ints:
    """The number of the file that each step lies in: bytes begin anew in the next one."""
    return np.cumsum(np.r_[0, (ends[1:] <= ends[:-1]).astype(np.int64)])


def having(run: Run, process: int, step: int) -> Iterator[Life]:
    """The lives that took a step, the latest first."""
    for life in reversed(run.lives):
        if process in life.index.processes:
            steps, start = own_steps(life, process)
            if step in steps or start == step:
                yield life
