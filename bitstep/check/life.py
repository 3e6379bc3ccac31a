"""The checks of one life of a run, step by step.

1. `step` hands the rows of all ranks to each check, and gives back findings.
2. What was found before is not told again; it is counted.

    checks = LifeChecks(0, slots)
    checks.step(3, {0: rows_0, 1: rows_1})
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from bitstep.check import recompute, words
from bitstep.check.collectives import uneven
from bitstep.check.finding import Compared, Finding, Kind
from bitstep.check.gathers import Gathers
from bitstep.check.replicas import Apart, Replicas, lone_writes
from bitstep.check.writes import Writes, Written
from bitstep.diff.rows import Rows
from bitstep.diff.slots import Class, Slots


class LifeChecks:
    """Takes the steps of one life, in order."""

    def __init__(self, number: int, slots: Slots) -> None:
        self.number = number
        self.done = -1
        """The last step that was taken."""
        self.world = 0
        """How many processes the program said it has; 0: it did not say."""
        self.findings: list[Finding] = []
        self.ranks: set[int] = set()
        self.steps: list[int] = []
        self.unpaired = 0
        """Modules whose recomputation could not be paired with their forward."""
        self.gaps: set[int] = set()
        self.again: dict[Kind, int] = {}
        """What was found again after the first time, by kind."""
        self.replicas = Replicas(slots)
        self._slots = slots
        self._gathers = Gathers(slots)
        self._writes: dict[int, Writes] = {}
        self._counts = dict.fromkeys(("recomputed", "collectives", "gathered"), 0)
        self._seen: set[tuple[object, ...]] = set()
        self._held: list[Finding] = []

    @property
    def compared(self) -> Compared:
        return Compared(
            replicas=self.replicas.compared,
            collectives=self._counts["collectives"],
            gathered=self._counts["gathered"] + self._gathers.compared,
            recomputed=self._counts["recomputed"],
            writes=sum(found.compared for found in self._writes.values()),
        )

    @property
    def broken_off(self) -> int:
        """Results in the last step that may not have arrived when the program ended."""
        return len(self._held)

    def step(self, step: int, rows: Mapping[int, Rows]) -> list[Finding]:
        """What one step shows; `rows` by process."""
        self.done = step
        self.steps.append(step)
        self.ranks.update(rows)
        self.look(step, rows)
        found = [
            *self._replicas(step, rows),
            *self._collectives(step, rows),
            *self._gathered(step, rows),
            *self._recompute(step, rows),
            *self._written(step, rows),
        ]
        self.findings += found
        return found

    def look(self, step: int, rows: Mapping[int, Rows]) -> None:
        """Take what a step says about the recording itself."""
        for of in rows.values():
            classes = self._slots.classes(of)
            said = np.flatnonzero(classes == Class.WORLD)
            if len(said):
                self.world = max(self.world, int(of.digest[said[0]]))
            if (classes == Class.GAP).any():
                self.gaps.add(step)

    def _is_new(self, kind: Kind, *what: object) -> bool:
        """Whether this was not found before; what is found again is counted."""
        if (kind, *what) in self._seen:
            self.again[kind] = self.again.get(kind, 0) + 1
            return False
        self._seen.add((kind, *what))
        return True

    # -- between ranks -----------------------------------------------------------------------

    def _replicas(self, step: int, rows: Mapping[int, Rows]) -> Iterator[Finding]:
        groups: dict[tuple[object, ...], list[Apart]] = {}
        for apart in self.replicas.step(step, rows):
            groups.setdefault((apart.step, apart.odd, apart.told), []).append(apart)
        for together in groups.values():
            lone = list(self._lone(step, together[0], rows))
            yield words.of_replicas(self.number, together, lone)

    def _lone(self, step: int, first: Apart, rows: Mapping[int, Rows]) -> Iterator[str]:
        """Operations that only some of the ranks ran in that step's optimizer."""
        if step != first.step or first.occurrence == 0:
            return
        rest = [rank for rank in first.among if not (first.told and rank in first.odd)]
        for rank in first.odd:
            other = next((r for r in rest if r != rank), None)
            if rank not in rows or other is None or other not in rows:
                continue
            ops = lone_writes(rows[other], rows[rank], self._slots)
            if ops:
                yield f"In phase optimizer only rank {rank} ran {', '.join(ops[:3])}."

    def _collectives(self, step: int, rows: Mapping[int, Rows]) -> Iterator[Finding]:
        # What was held back in the step before had arrived: its ranks went on.
        yield from self._held
        self._held.clear()
        found, results, shards = uneven(rows, self._slots)
        self._counts["collectives"] += results
        self._counts["gathered"] += shards
        for item in found:
            finding = words.of_collective(self.number, step, item)
            if not self._is_new(finding.kind, item.call[:2], item.odd):
                continue
            if item.arrived:
                yield finding
            else:
                self._held.append(finding)

    def _gathered(self, step: int, rows: Mapping[int, Rows]) -> Iterator[Finding]:
        for stale in self._gathers.step(rows):
            if self._is_new(Kind.GATHER, stale.name, stale.ranks):
                yield words.of_gather(self.number, step, stale, rows[stale.process])

    # -- within a rank -----------------------------------------------------------------------

    def _recompute(self, step: int, rows: Mapping[int, Rows]) -> Iterator[Finding]:
        groups: dict[tuple[str, str], list[tuple[int, recompute.Repeated]]] = {}
        for process, of in sorted(rows.items()):
            found = recompute.repeated(of, self._slots)
            if found is None:
                continue
            self._counts["recomputed"] += found.compared
            self.unpaired += found.unpaired
            if found.row >= 0 and self._is_new(Kind.RECOMPUTE, process):
                key = recompute.words(of, found, self._slots)
                groups.setdefault(key, []).append((process, found))
        for members in groups.values():
            ranks = tuple(process for process, _ in members)
            first = rows[ranks[0]]
            yield words.of_recompute(self.number, step, ranks, first, members[0][1], self._slots)

    def _written(self, step: int, rows: Mapping[int, Rows]) -> Iterator[Finding]:
        groups: dict[tuple[object, ...], list[tuple[int, list[Written]]]] = {}
        for process, of in sorted(rows.items()):
            found = self._writes.setdefault(process, Writes(self._slots)).step(of)
            for within in (False, True):
                mine = [w for w in found if w.within == within]
                mine = [w for w in mine if self._is_new(Kind.WRITE, process, w.name, within)]
                if mine:
                    key = (within, *(w.name for w in mine))
                    groups.setdefault(key, []).append((process, mine))
        for members in groups.values():
            ranks = tuple(process for process, _ in members)
            yield words.of_write(self.number, step, ranks, rows[ranks[0]], members[0][1])
