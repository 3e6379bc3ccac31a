"""What is there after a program was recorded, from the indexes alone: who wrote, and how much.

1. Each attempt is looked at: which ranks claimed it, with which world size, and what they wrote.
2. A rank that belongs to it and wrote no step makes the recording unverified; so does a program
   of which no process wrote anything.
3. A trace without an end marker ends with its last whole step, which is said.

>>> look(Path("runs/a")).line()  # doctest: +SKIP
'runs/a: 1 rank, 14 steps, 20480 rows; compare it: bitstep diff runs/a OTHER'
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from bitstep.errors import TraceError
from bitstep.observe.attempt import claims
from bitstep.trace.files import list_files
from bitstep.trace.index import Entries
from bitstep.trace.load import load_process

SHOWN: Final = 4
"""Ranks that are named in the line."""

NOTHING: Final = (
    "no process wrote anything: none trained, or it was started with -I, -E or -S, or with "
    "another PYTHONPATH"
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the processes of a program left."""

    run: Path
    attempts: int
    ranks: int
    """Of the attempt that has most of them."""
    steps: int
    """Optimizer steps, over all attempts; without step 0, which is what was before the first."""
    rows: int
    """Of all ranks."""
    missing: tuple[str, ...]
    """What should have been written and was not; not empty: the recording is unverified."""
    cut: tuple[str, ...]
    """Traces that end without an end marker, or are damaged."""

    def line(self) -> str:
        """All of it in one line, without `bitstep:`."""
        counted = [_many(self.ranks, "rank"), _many(self.steps, "step"), _many(self.rows, "row")]
        if self.attempts > 1:
            counted.insert(0, _many(self.attempts, "attempt"))
        parts = [", ".join(counted)] if self.attempts else []
        parts += [f"unverified: {'; '.join(self.missing)}"] * bool(self.missing)
        parts += self.cut
        if self.rows:
            parts.append(f"compare it: bitstep diff {self.run} OTHER")
        return f"{self.run}: {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class _Attempt:
    ranks: int
    steps: int
    rows: int
    missing: str
    cut: str


def look(run: Path, asked: Collection[int] | None = None) -> Recorded:
    """What is in a run directory after its program has ended; `asked`: the ranks to record."""
    folders = sorted(path for path in run.glob("attempt-*") if path.is_dir())
    attempts = [_look(folder, asked) for folder in folders]
    missing = tuple(attempt.missing for attempt in attempts if attempt.missing)
    return Recorded(
        run=_shown(run),
        attempts=len(attempts),
        ranks=max((attempt.ranks for attempt in attempts), default=0),
        steps=sum(attempt.steps for attempt in attempts),
        rows=sum(attempt.rows for attempt in attempts),
        missing=missing or ((NOTHING,) if not attempts else ()),
        cut=tuple(attempt.cut for attempt in attempts if attempt.cut),
    )


def _look(folder: Path, asked: Collection[int] | None) -> _Attempt:
    claimed = claims(folder)
    world = max([*claimed.values(), *(rank + 1 for rank in claimed)], default=0)
    try:
        names, damage = list_files(folder)
        found = {
            process: load_process(folder, list(mine))
            for process, mine in groupby(names, lambda name: name.process)
        }
    except (TraceError, OSError) as error:
        return _Attempt(0, 0, 0, missing=str(error), cut="")
    entries = {rank: [index.steps for index in indexes] for rank, indexes in found.items()}
    counts = {rank: sum(map(len, steps)) for rank, steps in entries.items()}
    expected = [rank for rank in range(world) if asked is None or rank in asked]
    silent = [rank for rank in expected if not counts.get(rank)]
    open_ = [rank for rank, indexes in found.items() if counts[rank] and indexes[-1].problem]
    return _Attempt(
        ranks=sum(map(bool, counts.values())),
        steps=max((_steps(steps) for steps in entries.values()), default=0),
        rows=sum(int(part["rows"].sum()) for steps in entries.values() for part in steps),
        missing=f"{_named(silent)} of {world} wrote nothing in {folder.name}" if silent else "",
        cut="; ".join([*_cut(open_, folder), *damage]),
    )


def _steps(parts: Sequence[Entries]) -> int:
    return sum(int((part["step"] > 0).sum()) for part in parts)


def _cut(ranks: Sequence[int], folder: Path) -> Iterator[str]:
    if ranks:
        ends = "ends" if len(ranks) == 1 else "end"
        yield f"{_named(ranks)} {ends} with the last whole step of {folder.name}"


def _named(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 1, 3", "ranks 0, 1, 2, 3 and 60 more"."""
    listed = ", ".join(map(str, ranks[:SHOWN]))
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return f"rank{'s' * (len(ranks) > 1)} {listed}{more}"


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _shown(run: Path) -> Path:
    """The directory as a person in this one would name it."""
    here = Path.cwd()
    return run.relative_to(here) if run.is_relative_to(here) else run
