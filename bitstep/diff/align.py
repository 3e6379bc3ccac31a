"""Pair the rows of one step of two runs: the same site in both.

1. Rows that both levels have, and that are compared at all, are kept.
2. Where all sites are equal in order, rows are paired by their place.
3. Else by place in every scope whose sequence is equal; in the others calls are aligned
   (`bitstep.diff.sequences`), and the rows of aligned calls are paired.
4. What is left over is missing in one run.

    pairs = pair(rows_a, rows_b, slots)
    pairs.a[pairs.differ], pairs.only_b
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from bitstep.diff import sequences
from bitstep.diff.rows import Ints, Mask, Rows, join
from bitstep.diff.slots import (
    LEVELS,
    Class,
    Slots,
    call_keys,
    contents,
    levels,
    recorded_level,
    scope_keys,
    tokens,
)
from bitstep.records import Flag

_NONE: Final = np.empty(0, np.int64)
_SITE: Final = ("phase", "pass_", "microbatch", "module", "op", "occurrence", "slot", "part",
                "rank")  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Rows of a step that belong together, as row numbers, in the order of a."""

    a: Ints
    b: Ints
    differ: Mask
    """Of each pair, whether its bits, dtype, shape or place differ."""
    only_a: Ints
    only_b: Ints
    scopes: int
    """Scopes whose calls had to be aligned; 0: all rows were paired by their place."""
    level: int
    """The level, an index in LEVELS, down to which rows were compared."""
    unlike: bool
    """One run recorded this step at a deeper level."""
    reordered: int = 0
    """Scopes that ran the same calls in another order: paired by their contents."""
    ended: str = ""
    """a or b: the run that ended within this step."""

    @property
    def equal(self) -> bool:
        return not (self.differ.any() or len(self.only_a) or len(self.only_b))


class _Group(NamedTuple):
    """The rows of one scope: a range of the sorted rows of its step, and a sum over its sites."""

    start: int
    end: int
    sites: int


def pair(a: Rows, b: Rows, slots: Slots) -> Pairs:
    """The rows of a step of two runs, paired and compared."""
    both = recorded_level(a, slots), recorded_level(b, slots)
    level, unlike = min(both), both[0] != both[1]
    rows_a, rows_b = (_compared(rows, slots, level, unlike) for rows in (a, b))
    scopes = reordered = 0
    at_a, at_b = rows_a, rows_b
    differ, alike = None, _same_sites(a, rows_a, b, rows_b)
    if alike:
        differ = _unequal(a, at_a, b, at_b)
    # Only operations can be the same ones in another order: other rows have names.
    if differ is None or (level == len(LEVELS) - 1 and differ.any()):
        at_a, at_b, scopes, reordered = _by_scope(a, rows_a, b, rows_b, slots)
        differ = _unequal(a, at_a, b, at_b)
    only_a, only_b = (_NONE, _NONE) if alike and not scopes and len(at_a) == len(rows_a) else (
        np.setdiff1d(rows_a, at_a), np.setdiff1d(rows_b, at_b))  # fmt: skip
    return Pairs(at_a, at_b, differ, only_a, only_b, scopes, level, unlike, reordered)


def _compared(rows: Rows, slots: Slots, level: int, unlike: bool) -> Ints:
    classes = slots.classes(rows)
    keep = classes >= Class.RNG
    if level < 3:
        keep &= levels(rows, slots, classes) <= level
    if unlike:  # Gradients of modules have rows at level module alone: deeper, operations do.
        used = np.unique(rows.slot).tolist()
        keep &= ~np.isin(rows.slot, [n for n in used if rows.codes.words[n].startswith("grad_")])
    return np.flatnonzero(keep)


def _same_sites(a: Rows, rows_a: Ints, b: Rows, rows_b: Ints) -> bool:
    return len(rows_a) == len(rows_b) and all(
        np.array_equal(getattr(a, name)[rows_a], getattr(b, name)[rows_b]) for name in _SITE
    )


def _unequal(a: Rows, rows_a: Ints, b: Rows, rows_b: Ints) -> Mask:
    found: Mask = a.digest[rows_a] != b.digest[rows_b]
    found |= a.dtype[rows_a] != b.dtype[rows_b]
    found |= a.form[rows_a] != b.form[rows_b]
    found &= (a.flags[rows_a] | b.flags[rows_b]) & np.uint32(Flag.SKIPPED) == 0
    return found


def _by_scope(
    a: Rows, rows_a: Ints, b: Rows, rows_b: Ints, slots: Slots
) -> tuple[Ints, Ints, int, int]:
    """Pairs of rows, how many scopes had to be aligned, and how many were only reordered."""
    sorted_a, groups_a = _groups(a, rows_a)
    sorted_b, groups_b = _groups(b, rows_b)
    places = _Places(a, b, slots)
    found_a, found_b = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    aligned = reordered = 0
    for key in groups_a.keys() & groups_b.keys():
        mine, other = groups_a[key], groups_b[key]
        part_a, part_b = sorted_a[mine.start : mine.end], sorted_b[other.start : other.end]
        if mine.sites != other.sites or len(part_a) != len(part_b):
            by_content = _moved(a, part_a, b, part_b, places)
            part_a, part_b = by_content or _aligned(a, part_a, b, part_b, places)
            aligned += 1
        elif _unequal(a, part_a, b, part_b).any():
            by_content = _permuted(a, part_a, b, part_b, places)
            if by_content:
                part_a, part_b = by_content
                reordered += 1
        found_a.append(part_a)
        found_b.append(part_b)
    at_a, at_b = np.concatenate(found_a), np.concatenate(found_b)
    order = np.argsort(at_a, kind="stable")
    return at_a[order], at_b[order], aligned, reordered


def _groups(rows: Rows, chosen: Ints) -> tuple[Ints, dict[int, _Group]]:
    """The chosen rows by scope, each scope in the order of `seq`, and where each scope lies."""
    scopes = scope_keys(rows)[chosen]
    order = np.argsort(scopes, kind="stable")
    scopes, chosen = scopes[order], chosen[order]
    starts = np.flatnonzero(np.r_[True, scopes[1:] != scopes[:-1]]) if len(chosen) else chosen
    ends = np.r_[starts[1:], len(chosen)]
    places = np.arange(len(chosen)) - np.repeat(starts, ends - starts)
    sites = join(tokens(rows)[chosen], rows.occurrence[chosen], places)
    sums = np.add.reduceat(sites, starts) if len(chosen) else sites
    found = {
        int(scopes[start]): _Group(int(start), int(end), int(total))
        for start, end, total in zip(starts, ends, sums, strict=True)
    }
    return chosen, found


class _Places:
    """Where in the program the drawing calls of a step were made: part of the name of a call.

    A place that only one run has marks a call that only this run made. Where the runs have no
    place in common the lines of the program have moved, and places say nothing.
    """

    def __init__(self, a: Rows, b: Rows, slots: Slots) -> None:
        self._slots = slots
        self._of_call = [self._find(rows, slots) for rows in (a, b)]
        places_a, places_b = (set(found.values()) for found in self._of_call)
        self._common = bool(places_a & places_b)

    def settings(self, rows: Rows, part: Ints) -> Mask:
        """Which rows are hyper-parameters of an optimizer: one may be there in one run only."""
        found: Mask = self._slots.classes(rows)[part] == Class.HYPER
        return found

    def of(self, side: int, call: int) -> int:
        return self._of_call[side].get(call, -1) if self._common else -1

    @staticmethod
    def _find(rows: Rows, slots: Slots) -> dict[int, int]:
        chosen = np.flatnonzero(slots.classes(rows) == Class.AT)
        if not len(chosen):
            return {}
        calls = call_keys(rows, scope_keys(rows))[chosen]
        return dict(zip(calls.tolist(), rows.slot[chosen].tolist(), strict=True))


class _Calls(NamedTuple):
    """The calls of one scope, in order."""

    rows: list[Ints]
    names: list[int]
    contents: list[int]
    marks: list[int]
    """A number for the op and the place in the program that it was called from, or -1."""


def _aligned(a: Rows, part_a: Ints, b: Rows, part_b: Ints, places: _Places) -> tuple[Ints, Ints]:
    """Pairs of the rows of one scope whose sequences differ."""
    calls_a, calls_b = _calls(a, part_a, places, 0), _calls(b, part_b, places, 1)
    pairs = sequences.align(
        calls_a.names, calls_b.names, calls_a.contents, calls_b.contents,
        calls_a.marks, calls_b.marks,
    )  # fmt: skip
    found_a, found_b = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for i, j in pairs:
        rows_a, rows_b = _same_slots(a, calls_a.rows[i], b, calls_b.rows[j])
        found_a.append(rows_a)
        found_b.append(rows_b)
    return np.concatenate(found_a), np.concatenate(found_b)


def _moved(
    a: Rows, part_a: Ints, b: Rows, part_b: Ints, places: _Places
) -> tuple[Ints, Ints] | None:
    """Where calls came or went and most others are there in both, in another order: pairs by
    content, the rest aligned. None: the others kept their order."""
    calls_a, calls_b = _calls(a, part_a, places, 0), _calls(b, part_b, places, 1)
    pairs = _by_content(calls_a, calls_b)
    order = [pairs[i] for i in sorted(pairs)]
    if order == sorted(order) or 2 * len(pairs) < len(calls_a.contents):
        return None
    taken = set(pairs.values())
    left = (
        [calls_a.rows[i] for i in range(len(calls_a.names)) if i not in pairs],
        [calls_b.rows[j] for j in range(len(calls_b.names)) if j not in taken],
    )
    rows = [_same_slots(a, calls_a.rows[i], b, calls_b.rows[j]) for i, j in pairs.items()]
    if all(left):
        rows.append(_aligned(a, np.concatenate(left[0]), b, np.concatenate(left[1]), places))
    return np.concatenate([one for one, _ in rows]), np.concatenate([two for _, two in rows])


def _by_content(
    calls_a: _Calls, calls_b: _Calls, settled: Mapping[int, int] = MappingProxyType({})
) -> dict[int, int]:
    """The calls of a that are in b with the same bits, those that are settled left out: each with
    the first that is left."""
    taken = set(settled.values())
    waiting: dict[int, list[int]] = {}
    for at, content in reversed(list(enumerate(calls_b.contents))):
        if at not in taken:
            waiting.setdefault(content, []).append(at)
    return {i: waiting[content].pop() for i, content in enumerate(calls_a.contents)
            if i not in settled and waiting.get(content)}  # fmt: skip


def _permuted(
    a: Rows, part_a: Ints, b: Rows, part_b: Ints, places: _Places
) -> tuple[Ints, Ints] | None:
    """Pairs by content, where most calls of a scope are there in both, in another order; the
    others keep their order. None: the calls are not the same ones."""
    calls_a, calls_b = _calls(a, part_a, places, 0), _calls(b, part_b, places, 1)
    # Of calls with the same bits (a mask that each microbatch makes anew) those that match where
    # they are stay there: one whose result was damaged would else look like one that moved.
    both = enumerate(zip(calls_a.contents, calls_b.contents, strict=False))
    stay = {i: i for i, (one, two) in both if one == two}
    moved = _by_content(calls_a, calls_b, stay)
    pairs = stay | moved
    if not moved or 2 * len(pairs) < len(calls_a.contents):
        return None
    taken = set(pairs.values())
    left_a = [i for i in range(len(calls_a.names)) if i not in pairs]
    left_b = [j for j in range(len(calls_b.names)) if j not in taken]
    if [calls_a.names[i] for i in left_a] != [calls_b.names[j] for j in left_b]:
        return None
    pairs.update(zip(left_a, left_b, strict=True))
    order = sorted(pairs.items())
    rows = [_same_slots(a, calls_a.rows[i], b, calls_b.rows[j]) for i, j in order]
    return np.concatenate([one for one, _ in rows]), np.concatenate([two for _, two in rows])


def _same_slots(a: Rows, rows_a: Ints, b: Rows, rows_b: Ints) -> tuple[Ints, Ints]:
    """The rows of two calls that have the same slot and part: an argument may be there in one
    only."""
    slots_a, slots_b = (
        rows.slot[at].astype(np.int64) << 32 | rows.part[at]
        for rows, at in ((a, rows_a), (b, rows_b))
    )
    if np.array_equal(slots_a, slots_b):
        return rows_a, rows_b
    places = {slot: at for at, slot in reversed(list(enumerate(slots_b.tolist())))}
    pairs = [(at, places[slot]) for at, slot in enumerate(slots_a.tolist()) if slot in places]
    return rows_a[[at for at, _ in pairs]], rows_b[[at for _, at in pairs]]


def _calls(rows: Rows, part: Ints, places: _Places, side: int) -> _Calls:
    """Rows of one op and occurrence are a call. What is no op, and each setting, stands alone, and
    so does each part of a quantized tensor that no op is given."""
    calls = call_keys(rows, scope_keys(rows))[part]
    lone = (rows.op[part] == rows.codes.number("")) | places.settings(rows, part)
    starts = np.flatnonzero(np.r_[True, (calls[1:] != calls[:-1]) | lone[1:]])
    sizes = np.diff(np.r_[starts, len(part)])
    first = part[starts]
    alone = np.where(lone[starts], rows.slot[first], -1)
    parts = np.where(lone[starts], rows.part[first], -1)
    names = join(np.zeros(len(first), np.uint64), rows.op[first], rows.rank[first], alone, parts)
    inside = np.arange(len(part)) - np.repeat(starts, sizes)
    bits = np.add.reduceat(join(tokens(rows)[part], inside, contents(rows)[part]), starts)
    at = np.array([places.of(side, call) for call in calls[starts].tolist()], np.int64)
    names = join(names, at)
    marks = np.where(at >= 0, (names >> np.uint64(1)).astype(np.int64), -1)
    return _Calls(
        np.split(part, starts[1:]), names.tolist(), join(names, bits).tolist(), marks.tolist()
    )


def call_of(rows: Rows, row: int) -> Ints:
    """The rows of the call that a row belongs to, in order, `at` and `rng` rows included."""
    same = np.ones(len(rows), np.bool_)
    for name in ("phase", "pass_", "microbatch", "module", "op", "occurrence", "rank"):
        column: npt.NDArray[np.int32] = getattr(rows, name)
        same &= column == column[row]
    return np.flatnonzero(same)
