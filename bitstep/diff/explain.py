"""From where a process parts to why: the kinds are tested in a fixed order.

1. `explain` looks at the first pair that differs (`findings`, `writes`, `spread`, `initial`).
2. What a rank received is followed to the ranks that sent it.
3. Origins that nothing orders are all named; the same one on several ranks is named once.

    causes, receivers = explain(courses, run_a, run_b, slots)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from bitstep.diff import findings, initial, parts, spread, values, writes
from bitstep.diff.case import LETTER, Case, site
from bitstep.diff.difference import Cause, Kind, Received, Where
from bitstep.diff.findings import Finding
from bitstep.diff.load import Run
from bitstep.diff.localise import Course, Parting
from bitstep.diff.slots import LEVELS, Class, Slots
from bitstep.diff.starts import Changed, bits_at

PHASES: Final = ("start", "data", "eval", "forward", "exchange", "backward", "reduce", "scale",
                 "clip", "optimizer", "gather", "checkpoint")  # fmt: skip
_SURE_BY_ITSELF: Final = (Kind.INITIAL, Kind.DATA, Kind.RANDOM, Kind.CONFIGURATION)

_FEW: Final = 64
"""Ranks that part, up to which each of them is explained."""

_Test = Callable[[Case], Finding | None]
_TESTS: Final[tuple[_Test, ...]] = (
    findings.data,
    findings.random,
    findings.configuration,
)
_LATER_TESTS: Final[tuple[_Test, ...]] = (
    values.order,
    values.recompute,
    values.uninitialised,
    findings.from_outside,
    writes.carried_write,
    writes.written,
    writes.origin,
)


class _Explained:
    """A process, what was found, and where its difference came from."""

    def __init__(self, case: Case, finding: Finding, came: spread.Came | None) -> None:
        self.case = case
        self.finding = finding
        self.came = came

    @property
    def is_received(self) -> bool:
        return self.finding.kind is Kind.RECEIVER


def explain(
    courses: Sequence[Course], a: Run, b: Run, slots: Slots
) -> tuple[tuple[Cause, ...], tuple[Received, ...]]:
    """The causes, in causal order, and the ranks that only received a difference."""
    cases = sorted((_case(one, slots) for one in _parted(courses)), key=_order)
    near, far = _split(cases)
    found = [_explain(case, a, b, slots) for case in near]
    senders = [_explain(_case(one, slots), a, b, slots) for one in _senders(found, courses)]
    found = sorted(found + senders, key=lambda one: _order(one.case))
    first = next((one for one in found if not one.is_received), found[0] if found else None)
    if first is None:
        return (), ()
    origins = [one for one in found if one is first or _is_origin(one, first)]
    received = [_received(one.case, one.came) for one in found if one not in origins]
    received += [_received(case, None) for case in far]
    return _grouped([_cause(one) for one in origins]), tuple(received)


def _parted(courses: Sequence[Course]) -> list[Parting]:
    """Where processes part. What reaches no state counts only where nothing else was found."""
    parted = [course.parting for course in courses if course.parting]
    healed = [course.healed for course in courses if course.healed]
    return parted or healed or [course.extra for course in courses if course.extra]


def _senders(found: Sequence[_Explained], courses: Sequence[Course]) -> list[Parting]:
    """Where ranks part that sent a difference and kept nothing of it themselves."""
    known = {one.case.parting.process for one in found}
    steps = {rank: one.case.parting.step for one in reversed(found)
             if one.is_received and one.came for rank in one.came.sources}  # fmt: skip
    return [
        course.chain if course.chain.step <= steps[course.process] else course.healed
        for course in courses
        if course.process in steps.keys() - known and course.chain and course.healed
    ]


def _case(parting: Parting, slots: Slots) -> Case:
    return Case(parting, slots, None if parting.restart else parting.first)


def _split(cases: list[Case]) -> tuple[list[Case], list[Case]]:
    """Cases that must be explained, and those that came later for certain: of thousands of ranks
    without recorded collectives, all that part after the first ones."""
    if len(cases) <= _FEW:
        return cases, []
    first = _order(cases[0])[:3]
    near = [case for case in cases if _order(case)[:3] == first or not _is_later(case)]
    far = [case for case in cases if _order(case)[:3] != first and _is_later(case)]
    return near, far


def _is_later(case: Case) -> bool:
    if case.at is None:
        return False
    return case.parting.pairs.level == 0 and case.kind not in (
        Class.BATCH, Class.RNG, Class.HYPER)  # fmt: skip


def _order(case: Case) -> tuple[int, bool, int, int]:
    phase = "start" if case.at is None else _part_of_step(case)
    known = PHASES.index(phase) if phase in PHASES else len(PHASES)
    return *case.parting.order, known, case.parting.process


def _part_of_step(case: Case) -> str:
    """The phase of a row; of parameters and buffers that are gathered, the one that waits."""
    phase = case.text("phase")
    if phase != "gather":
        return phase
    rows = case.sides[0]
    others = np.flatnonzero(rows.phase[: case.row[0]] != rows.codes.number("gather"))
    return rows.text("phase", int(others[-1])) if len(others) else phase


def _is_origin(one: _Explained, first: _Explained) -> bool:
    """Whether a rank's difference is its own, and not one that reached it from `first`."""
    if one.is_received:
        return False
    if _order(one.case)[:3] == _order(first.case)[:3] or one.finding.kind in _SURE_BY_ITSELF:
        return True
    # With collectives recorded, what comes to a rank comes through one of them.
    deep = min(one.case.parting.pairs.level, first.case.parting.pairs.level)
    return deep == len(LEVELS) - 1 and one.finding.kind is Kind.ORIGIN


def _explain(case: Case, a: Run, b: Run, slots: Slots) -> _Explained:
    if case.parting.restart:
        return _Explained(case, initial.restarted(case.parting, slots), None)
    if case.at is None:
        return _Explained(case, _missing(case), None)
    came = spread.came_from(case, a, b) if spread.is_collective(case) else None
    finding = _find(case, came)
    finding = initial.first_state(case, finding) or finding
    if said := parts.words(case):
        finding = dataclasses.replace(finding, title=f"{finding.title}: {said}")
    return _Explained(case, finding, came)


def _find(case: Case, came: spread.Came | None) -> Finding:
    """The first test that says yes."""
    tests = _TESTS
    if case.text("pass_") == "recompute":
        tests = (values.recompute, *tests)
    for test in tests:
        if found := test(case):
            return found
    if came is not None and (found := spread.delivered(case, came)):
        return found
    for test in _LATER_TESTS:
        if found := test(case):
            return found
    raise AssertionError("an origin is found for everything")


def _missing(case: Case) -> Finding:
    """One run has records that the other lacks, and all others are equal."""
    side, row = _first_alone(case)
    rows, mine, other = case.sides[side], LETTER[side], LETTER[1 - side]
    only = case.parting.pairs.only_a, case.parting.pairs.only_b
    return Finding(
        Kind.MISSING,
        f"only {mine} has {site(rows, row)}, slot {rows.text('slot', row)}",
        (f"In this step A has {len(only[0])} records that B lacks, B has {len(only[1])} that A "
         "lacks.", f"All records that {mine} and {other} both have are equal."),
        "certain",
        (side, row),
    )  # fmt: skip


def _first_alone(case: Case) -> tuple[int, int]:
    pairs = case.parting.pairs
    if len(pairs.only_b) and (not len(pairs.only_a) or pairs.only_b[0] <= pairs.only_a[0]):
        return 1, int(pairs.only_b[0])
    return 0, int(pairs.only_a[0])


def _cause(one: _Explained) -> Cause:
    case, finding = one.case, one.finding
    parting = case.parting
    if parting.restart:
        item = parting.restart[0]
        bits = (item.other, item.mine) if parting.restarted == "b" else (item.mine, item.other)
        where = _restart_where(parting, item)
    elif case.at is None or finding.side_row:
        side, row = finding.side_row or (0, 0)
        partner = int(case.partner[side][row])
        own = bits_at(case.sides[side], row)
        theirs = bits_at(case.sides[1 - side], partner) if partner >= 0 else None
        bits = (own, theirs) if side == 0 else (theirs, own)
        where = case.where(side, row)
    else:
        bits = case.bits(0), case.bits(1)
        where = case.where()
    return Cause(
        finding.kind, where, finding.title, finding.because, finding.sure, bits[0], bits[1],
        (parting.process,), parting.equal_before, _pairing(parting), finding.hint,
    )  # fmt: skip


def _restart_where(parting: Parting, item: Changed) -> Where:
    return Where(parting.step, parting.process, "start", "primary", -1, item.name, "", 0, item.slot,
                 parting.a.number, parting.b.number, item.part)  # fmt: skip


def _pairing(parting: Parting) -> str:
    if parting.restart:
        return "by name: the start of the attempt against the end of the step"
    only = len(parting.pairs.only_a), len(parting.pairs.only_b)
    more = f": {only[0]} records only in A, {only[1]} only in B" if any(only) else ""
    if not parting.pairs.scopes:
        return "by place" + (more or ": both runs recorded the same sites in the same order")
    return f"by place, and in {parting.pairs.scopes} scopes whose calls differ by alignment{more}"


def _grouped(causes: list[Cause]) -> tuple[Cause, ...]:
    """One cause for the ranks that part at the same site in the same way."""
    found: dict[object, Cause] = {}
    for cause in causes:
        key = cause.kind, cause.title, dataclasses.replace(cause.where, rank=-1)
        if key in found:
            ranks = (*found[key].ranks, *cause.ranks)
            found[key] = dataclasses.replace(found[key], ranks=ranks)
        else:
            found[key] = cause
    return tuple(found.values())


def _received(case: Case, came: spread.Came | None) -> Received:
    source = came.sources if came else ()
    if case.at is None:
        return Received(case.parting.process, case.parting.step, "start", "", "", source)
    return Received(
        case.parting.process, case.parting.step, case.text("phase"), case.text("op"),
        case.text("slot"), source,
    )  # fmt: skip
