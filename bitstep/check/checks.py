"""All checks of one run, step by step, as far as its steps are there.

1. `advance` reads the steps that all ranks have written since the last time, and gives back what
   they show. While a run goes on it is called again and again.
2. Each life of the run has its own checks: what one left is not compared with what the next finds.
3. `result` reads what is left, and sums up.

    check = Check(Path("runs/a"))
    check.advance()
    check.result().findings
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from bitstep.check.expected import Expected
from bitstep.check.finding import Checked, Finding
from bitstep.check.life import LifeChecks
from bitstep.check.summary import summarise
from bitstep.diff.load import Life, Run, load_run
from bitstep.diff.place import place
from bitstep.diff.rows import Codes, Rows
from bitstep.diff.slots import Slots

WINDOW: Final = 16
"""Steps that are read of each process before the next process."""
STRAGGLE: Final = 3
"""Steps after which a process that has written nothing is not waited for."""


class Check:
    """The checks of a run that is there, or that goes on."""

    def __init__(self, run: Path, expect: Path | None = None) -> None:
        """Raises RunError and TraceError as `load_run` does, for `run` and for `expect`."""
        self._path, self._expect = run, expect
        self._codes = Codes()
        self._slots = Slots(self._codes)
        self._lives: dict[int, LifeChecks] = {}
        self._expected = Expected(self._slots) if expect else None
        self._load()

    def advance(self) -> list[Finding]:
        """What the steps show that were written since the last time, by all ranks."""
        self._load()
        return self._read(final=False)

    @property
    def ended(self) -> bool:
        """Whether every rank of the last life has ended, as far as was read."""
        life = self._run.lives[-1]
        over = [_is_over(life, process) for process in life.index.processes]
        return bool(over) and all(over) and len(over) >= self._checks(life).world

    def result(self) -> Checked:
        """Read what is left, and sum up."""
        self._load()
        self._read(final=True)
        return summarise(self._run, self._expect, self._lives, self._expected)

    def _load(self) -> None:
        self._run = load_run(self._path, "run", self._codes)
        self._other = load_run(self._expect, "expected", self._codes) if self._expect else None
        if self._other or len(self._run.lives) > 1:
            # Alone, its first life stands for another run: later lives find their place by it.
            place(self._run, self._other or Run("run", self._path, self._run.lives[:1], []))

    def _checks(self, life: Life) -> LifeChecks:
        if life.number not in self._lives:
            self._lives[life.number] = LifeChecks(life.number, self._slots)
        return self._lives[life.number]

    def _read(self, final: bool) -> list[Finding]:
        found = []
        for life in self._run.lives:
            checks = self._checks(life)
            over = final or life is not self._run.lives[-1]
            _ask_world(life, checks)
            for window in _windows(life, checks.done, over, checks.world):
                for step, rows in _together(life, window):
                    found += checks.step(step, rows)
                    if self._expected and self._other:
                        new = self._expected.step(life, self._other, step, rows)
                        checks.findings += new
                        found += new
        return found


def _ask_world(life: Life, checks: LifeChecks) -> None:
    """Before the first step is taken: how many ranks there will be."""
    for process in life.index.processes[:1] if checks.done < 0 else ():
        for step in life.steps(process)[:1].tolist():
            rows = life.rows(process, step)
            if rows is not None:
                checks.look(step, {process: rows})


def _windows(life: Life, done: int, over: bool, world: int) -> Iterator[dict[int, list[int]]]:
    """The steps to be read next, in pieces: steps by process."""
    steps = {p: life.steps(p) for p in life.index.processes}
    ends = {p: int(of[-1]) if len(of) else -1 for p, of in steps.items()}
    if not ends:
        return
    last = max(ends.values())
    if not over:
        awaited = [end for p, end in ends.items() if not _is_over(life, p)]
        awaited += [-1] * (len(ends) < world and last < life.offset + STRAGGLE)
        last = min(awaited, default=last)
    every = np.unique(np.concatenate(list(steps.values())))
    every = every[(every > done) & (every <= last)]
    for first in range(0, len(every), WINDOW):
        low, high = every[first], every[min(first + WINDOW, len(every)) - 1]
        yield {p: of[(of >= low) & (of <= high)].tolist() for p, of in steps.items()}


def _is_over(life: Life, process: int) -> bool:
    """Whether nothing will come any more from a process, that can be read."""
    index = life.index.process(process)
    return index.closed or any(line.startswith("damaged") for line in index.damage)


def _together(life: Life, window: Mapping[int, list[int]]) -> Iterator[tuple[int, dict[int, Rows]]]:
    """The rows of all processes, step by step."""
    found: dict[int, dict[int, Rows]] = {}
    for process, steps in window.items():
        for step, rows in life.walk(process, steps):
            if rows is not None:
                found.setdefault(step, {})[process] = rows
    yield from sorted(found.items())
