"""A run as the comparison reads it: its lives, their indexes, and rows on demand.

1. Every directory `attempt-000`, `attempt-001` ... is one life; only its indexes are loaded.
2. `Life.offset` takes its local steps to absolute ones (`bitstep.diff.place`).
3. `Life.walk` reads chosen steps of a process in order; `Life.rows` one step, with a small memory.

    run = load_run(Path("runs/a"), "a", Codes())
    run.lives[0].rows(process=0, step=3)
"""

from __future__ import annotations

import os
import re
import stat
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from bitstep.diff.rows import Codes, Decoder, Ints, Rows
from bitstep.errors import RunError, TraceError
from bitstep.records import Flag
from bitstep.trace.indexes import TraceIndex, read_indexes

_NAME: Final = re.compile(r"attempt-(\d{3,})", re.ASCII)
COUNTS: Final = ("count.threads", "count.skipped", "count.compiled")
"""What a recorder counts that it did not see whole."""
_KEPT: Final = 8
"""Steps whose rows are kept in memory, per life."""


@dataclass(eq=False)
class Life:
    """One attempt of a run."""

    run: str
    """a or b."""
    number: int
    index: TraceIndex
    codes: Codes
    offset: int = 0
    """Absolute step = step of the rows + offset."""
    damage: list[str] = field(default_factory=list)
    """What reading rows has shown; the index has its own."""
    gaps: dict[tuple[int, int], str] = field(default_factory=dict)
    """(process, absolute step) -> why recording was reduced or failed there."""
    counts: dict[str, int] = field(default_factory=dict)
    """Slot -> largest count, of what the recorder says it did not see."""
    _kept: OrderedDict[tuple[int, int], Rows] = field(default_factory=OrderedDict)

    def steps(self, process: int) -> Ints:
        """The absolute steps that a process recorded, increasing; none if it recorded nothing."""
        return self.index.process(process).step + self.offset

    def walk(self, process: int, steps: Iterable[int]) -> Iterator[tuple[int, Rows | None]]:
        """Absolute step and rows of chosen absolute steps; None, at the end, for damage."""
        decoder = Decoder(self.codes)
        wanted = [int(step) - self.offset for step in steps]
        for found in self.index.batches(process, wanted):
            if found.batch is None:
                self.note(found.damage or "damaged")
                yield found.step + self.offset, None
                return
            rows = decoder.rows(found.batch)
            self._watch(process, found.step + self.offset, rows)
            yield found.step + self.offset, rows

    def rows(self, process: int, step: int) -> Rows | None:
        """The rows of one absolute step; None where there are none, or damaged ones."""
        key = (process, step)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if process not in self.index.processes:
            return None
        found = next(self.walk(process, (step,)), (step, None))[1]
        if found is not None:
            self._kept[key] = found
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found

    def _watch(self, process: int, step: int, rows: Rows) -> None:
        """Keep what the recorder says about itself."""
        for row in np.flatnonzero(rows.flags & np.uint32(Flag.GAP)).tolist():
            self.gaps[process, step] = rows.text("op", row) or rows.text("slot", row)
        for slot in COUNTS:
            found = rows.digest[rows.slot == self.codes.number(slot)]
            if len(found):
                self.counts[slot] = max(self.counts.get(slot, 0), int(found.max()))

    def note(self, line: str) -> None:
        """Keep a line of damage, once."""
        line = f"{self.run}, attempt {self.number}: {line}"
        if line not in self.damage:
            self.damage.append(line)


@dataclass(eq=False)
class Run:
    """A run directory."""

    name: str
    """a or b."""
    path: Path
    lives: list[Life]
    damage: list[str]
    """Attempts that are missing."""

    @property
    def processes(self) -> set[int]:
        return {process for life in self.lives for process in life.index.processes}

    def all_damage(self) -> list[str]:
        """Every line of damage that is known by now."""
        lines = list(self.damage)
        for life in self.lives:
            lines += [f"{self.name}, attempt {life.number}: {line}" for line in life.index.damage]
            lines += [line for line in life.damage if line not in lines]
        return lines


def load_run(path: Path, name: str, codes: Codes) -> Run:
    """The lives of a run, in order. Raises RunError where there is none, TraceError as
    `read_indexes` does and for an attempt that is a link."""
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise RunError(f"{path}: no run to read: {error.strerror}") from error
    numbers = sorted(int(match[1]) for word in names if (match := _NAME.fullmatch(word)))
    if not numbers:
        raise RunError(f"{path}: no run: it holds no directory attempt-000")
    lost = sorted(set(range(numbers[-1])) - set(numbers))
    damage = [f"{name}: cut: attempt-{number:03d}: the attempt is missing" for number in lost]
    lives = []
    for number in numbers:
        directory = path / f"attempt-{number:03d}"
        if not stat.S_ISDIR(directory.lstat().st_mode):
            raise TraceError(f"{directory}: is a link or a file: an attempt is a directory")
        lives.append(Life(name, number, read_indexes(directory), codes))
    return Run(name, path, lives, damage)
