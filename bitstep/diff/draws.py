"""Random states as a chain: who drew a number that the other run did not draw.

1. Every row `rng` is the state of a generator at one moment; equal digests, equal states.
2. If the state that A is in now was B's state earlier, B has drawn since: those are the extra
   draws. Else both have drawn something else since the last state that they had in common.
3. Calls that only one run made are told first; they say where in the program they are.

    extra_draws(case).sentences
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from bitstep.diff.align import call_of, pair
from bitstep.diff.case import LETTER, Case
from bitstep.diff.rows import Ints, Rows
from bitstep.diff.slots import LEVELS, Class

_STEPS: Final = 16
"""Steps that are searched for the last common state, at most."""
_SHOWN: Final = 3


class State(NamedTuple):
    """One state of a generator, at one row."""

    digest: int
    step: int
    """Absolute."""
    rows: Rows
    row: int
    alone: bool
    """Its call has no partner in the other run."""

    @property
    def draws(self) -> bool:
        return bool(self.rows.text("op", self.row))


class Draws(NamedTuple):
    """What a search for extra draws has found."""

    sentences: tuple[str, ...]
    found: bool
    """The draws that only one run made are known."""


def extra_draws(case: Case) -> Draws:
    """Who drew too much, before the rng row that the case is about."""
    now = [int(case.sides[side].digest[case.row[side]]) for side in (0, 1)]
    past: list[list[State]] = [[], []]
    for older in _backwards(case):
        past = [older[side] + past[side] for side in (0, 1)]
        for side in (0, 1):
            # The state that the other run is in: was it ours before?
            since = _since(past[side], now[1 - side])
            if since is not None:
                return _extra(side, since)
        common = {state.digest for state in past[0]} & {state.digest for state in past[1]}
        if common:
            return _after(past, common)
    if case.parting.pairs.level < len(LEVELS) - 1:
        return Draws(("What was drawn before it was not recorded at this level.",), False)
    return Draws(("No state that both generators had was recorded before it: other seeds?",), False)


def _after(past: list[list[State]], common: set[int]) -> Draws:
    """What each run drew since the last state that both had."""
    words, found = [], False
    for side in (0, 1):
        last = max(at for at, state in enumerate(past[side]) if state.digest in common)
        drawn = [state for state in past[side][last:] if state.draws]
        found |= bool(drawn)
        words.append(f"{LETTER[side]} drew {_list(drawn)}")
    if not found:
        return Draws(
            ("Both were in the same state before; what was drawn was not recorded.",), False
        )
    return Draws((f"Since the last state that both had, {words[0]}, {words[1]}.",), True)


def _since(past: list[State], digest: int) -> list[State] | None:
    """The draws from the last time that the state was `digest`; None: it never was."""
    places = [at for at, state in enumerate(past) if state.digest == digest]
    return [state for state in past[places[-1] :] if state.draws] if places else None


def _extra(side: int, since: list[State]) -> Draws:
    alone = [state for state in since if state.alone] or since
    if not alone:
        text = f"{LETTER[side]} was in that state before, and drew what was not recorded."
        return Draws((text,), False)
    times = "once" if len(alone) == 1 else f"{len(alone)} times"
    return Draws((f"{LETTER[side]} drew {times} more: {_list(alone)}.",), True)


def _list(states: list[State]) -> str:
    if not states:
        return "nothing that was recorded"
    more = f" and {len(states) - _SHOWN} more" if len(states) > _SHOWN else ""
    return "; ".join(map(_draw, states[:_SHOWN])) + more


def _draw(state: State) -> str:
    rows, row = state.rows, state.row
    op, phase = rows.text("op", row), rows.text("phase", row)
    return f"{op}{_place(rows, row)} (step {state.step}, phase {phase})"


def _place(rows: Rows, row: int) -> str:
    for other in call_of(rows, row).tolist():
        slot = rows.text("slot", other)
        if slot.startswith("at."):
            return f" at {slot.removeprefix('at.')}"
    return ""


def _backwards(case: Case) -> Iterator[tuple[list[State], list[State]]]:
    """The states of both sides before the case's row, step by step, the latest step first."""
    step = case.parting.step
    yield tuple(  # type: ignore[misc]
        [state for state in _states(case, side, step, case.sides[side], case.partner[side])
         if state.row < case.row[side]]
        for side in (0, 1)
    )  # fmt: skip
    for earlier in range(step - 1, step - 1 - _STEPS, -1):
        both = [life.rows(case.parting.process, earlier) for life in case.lives]
        if both == [None, None]:
            return
        partner = _partners(case, both)
        yield tuple(  # type: ignore[misc]
            [] if rows is None else _states(case, side, earlier, rows, partner[side])
            for side, rows in enumerate(both)
        )


def _partners(case: Case, both: list[Rows | None]) -> list[Ints]:
    """Which rows of an earlier step have a partner; all, where only one run has the step."""
    a, b = both
    if a is None or b is None:
        return [np.zeros(len(rows) if rows is not None else 0, np.int64) for rows in both]
    pairs = pair(a, b, case.slots)
    found = [np.zeros(len(a), np.int64), np.zeros(len(b), np.int64)]
    found[0][pairs.only_a] = found[1][pairs.only_b] = -1
    return found


def _states(case: Case, side: int, step: int, rows: Rows, partner: Ints) -> list[State]:
    chosen = np.flatnonzero(case.slots.classes(rows) == Class.RNG).tolist()
    return [State(int(rows.digest[row]), step, rows, row, bool(partner[row] < 0)) for row in chosen]
