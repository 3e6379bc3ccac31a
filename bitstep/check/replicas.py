"""Tensors that ranks hold in common, and the first step at which one rank holds another.

Nothing says which tensors are replicas. What is alike by accident (expert weights that begin as
zeros) must not be taken for one, so ranks prove it:

1. A tensor is read on every rank at the same place of the step: at the start, before the optimizer,
   at the end. Ranks with equal bits form a class; the classes of a reading are its pattern.
2. A reading counts where the tensor has changed since the reading before it. Two that count in a
   row with the same pattern prove the classes: of a parameter by its own bits or by those of its
   gradient, of a buffer by its own. Moments follow their parameter.
3. A proven class that does not agree in a reading, then or since, is reported, once per tensor and
   rank. Of three and more the larger part is taken for right; of two nobody can tell.

Parameters that were equal at the start and never again are not taken for replicas, and are listed.

    Replicas(codes, slots).step(3, {0: rows_0, 1: rows_1})
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from bitstep.check.readings import Reading, readings
from bitstep.diff.rows import Rows
from bitstep.diff.slots import Slots

PROOF: Final = 2
"""Readings in a row that prove a pattern."""
_KEPT: Final = 64
"""Changes of pattern that are remembered per tensor."""
Pattern = tuple[int, ...]
"""Per holder the first holder that has the same bits, as places in `holders`."""


class Apart(NamedTuple):
    """A proven class of ranks that does not agree, and the reading at which it parted."""

    module: str
    """Name of the tensor; empty for a root."""
    slot: str
    step: int
    order: int
    """Place of the reading within its step."""
    phase: str
    occurrence: int
    odd: tuple[int, ...]
    """The ranks that are wrong, or all of them where `told` is False."""
    told: bool
    among: tuple[int, ...]


class _Change(NamedTuple):
    """From this reading on the pattern is another one."""

    reading: Reading
    pattern: Pattern


@dataclass
class _Track:
    """One tensor of one shape and place, reading after reading."""

    slot: str
    holders: tuple[int, ...] = ()
    contents: bytes = b""
    pattern: Pattern = ()
    streak: int = 0
    changes: list[_Change] = field(default_factory=list)
    begun_equal: bool = False

    def take(self, reading: Reading) -> bool:
        """Add a reading. Whether it proves its pattern."""
        changed = reading.contents != self.contents
        if reading.holders != self.holders:
            # Other ranks than before: their places in the pattern mean something else.
            self.holders, self.streak, self.changes = reading.holders, 0, []
            changed, self.pattern = self.slot in _FRESH, ()
        if reading.pattern != self.pattern:
            self.streak = 0
            self.changes = [*self.changes[-_KEPT:], _Change(reading, reading.pattern)]
        self.begun_equal |= not self.contents and not any(reading.pattern)
        self.contents, self.pattern = reading.contents, reading.pattern
        self.streak += changed
        return changed and self.streak >= PROOF


_FRESH: Final = ("grad", "root.grads")
"""Computed anew for every reading, so that the first one counts as well."""


class Replicas:
    """Follows every tensor of the state over all ranks. Steps come in order."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._tracks: dict[str, dict[tuple[str, int], _Track]] = {}
        self._proven: dict[str, dict[int, int]] = {}
        self._cache: dict[str, dict[tuple[int, ...], list[list[int]]]] = {}
        self._reported: set[tuple[str, int]] = set()
        self.compared = 0
        """Readings of proven replicas."""
        self.later = 0
        """Readings that disagree after the first of their tensor."""

    def step(self, step: int, rows: Mapping[int, Rows]) -> list[Apart]:
        """What came apart in a step, or is now known to have come apart before."""
        found: list[Apart] = []
        for reading in readings(step, rows, self._slots):
            tracks = self._tracks.setdefault(reading.name, {})
            track = tracks.setdefault((reading.slot, reading.form), _Track(reading.slot))
            proves = track.take(reading)
            news = proves and reading.proves and self._prove(reading.name, track)
            for other in tracks.values() if news else (track,):
                found += self._apart(reading.name, other)
        return sorted(found, key=lambda apart: (apart.step, apart.order))

    @property
    def unproven(self) -> list[str]:
        """Parameters that all ranks began with alike, that differ, and that proved no replicas."""
        return [
            name
            for name, tracks in self._tracks.items()
            for track in tracks.values()
            if track.slot in ("param", "root.params") and track.begun_equal
            and len(track.holders) > 1 and any(track.pattern)
            and not any((name, rank) in self._reported for rank in track.holders)
        ]  # fmt: skip

    @property
    def proven(self) -> int:
        """Tensors that several ranks have proven to hold in common."""
        return sum(bool(self._classes(name, tuple(of))) for name, of in self._proven.items())

    def _prove(self, name: str, track: _Track) -> bool:
        """Merge the classes of a pattern into what is proven; whether that is news."""
        known = self._proven.setdefault(name, {})
        before = dict(known)
        for at, holder in enumerate(track.holders):
            first = track.holders[track.pattern[at]]
            mine, other = known.get(holder, holder), known.get(first, first)
            low, high = min(mine, other), max(mine, other)
            known[holder] = known[first] = low
            for member, owner in known.items():
                if owner == high:
                    known[member] = low
        if known == before:
            return False
        self._cache.pop(name, None)
        return True

    def _classes(self, name: str, holders: tuple[int, ...]) -> list[list[int]]:
        """Proven classes of two and more among holders, as places in `holders`."""
        of = self._cache.setdefault(name, {})
        if holders not in of:
            of[holders] = self._find_classes(self._proven.get(name, {}), holders)
        return of[holders]

    @staticmethod
    def _find_classes(known: dict[int, int], holders: tuple[int, ...]) -> list[list[int]]:
        classes: dict[int, list[int]] = {}
        for at, holder in enumerate(holders):
            classes.setdefault(known.get(holder, holder), []).append(at)
        return [members for members in classes.values() if len(members) > 1]

    def _apart(self, name: str, track: _Track) -> Iterator[Apart]:
        for members in self._classes(name, track.holders):
            # Buffers are no sign that ranks train together: each may count its steps alone.
            self.compared += track.slot not in ("buffer", "attr", "root.buffers")
            if not _differ(track.pattern, members):
                continue
            odd, told = _odd(track, members)
            if all((name, rank) in self._reported for rank in odd):
                self.later += 1
                continue
            self._reported.update((name, rank) for rank in odd)
            reading = _since(track, members)
            among = tuple(track.holders[at] for at in members)
            yield Apart(reading.module, track.slot, reading.step, reading.order, reading.phase,
                        reading.occurrence, odd, told, among)  # fmt: skip


def _differ(pattern: Pattern, members: list[int]) -> bool:
    return len({pattern[at] for at in members}) > 1


def _odd(track: _Track, members: list[int]) -> tuple[tuple[int, ...], bool]:
    """The ranks outside the majority, and True; all ranks, and False where there is none."""
    counts = Counter(track.pattern[at] for at in members).most_common(2)
    told = 2 * counts[0][1] > len(members)
    odd = [at for at in members if not told or track.pattern[at] != counts[0][0]]
    return tuple(track.holders[at] for at in odd), told


def _since(track: _Track, members: list[int]) -> Reading:
    """The reading from which on the members disagree without a break."""
    since = track.changes[-1]
    for change in reversed(track.changes):
        if not _differ(change.pattern, members):
            break
        since = change
    return since.reading


def lone_writes(a: Rows, b: Rows, slots: Slots) -> list[str]:
    """Operations that wrote in place in phase `optimizer` of b, and not as often in a."""
    counts = [_writes(rows) for rows in (a, b)]
    return sorted(op for op, count in counts[1].items() if count > counts[0][op])


def _writes(rows: Rows) -> Counter[str]:
    chosen = np.flatnonzero(rows.phase == rows.codes.number("optimizer"))
    calls = {
        (rows.text("op", row), int(rows.module[row]), int(rows.microbatch[row]),
         int(rows.occurrence[row]))
        for row in chosen.tolist()
        if rows.text("slot", row).startswith("mutated.")
    }  # fmt: skip
    return Counter(op for op, *_ in calls)
