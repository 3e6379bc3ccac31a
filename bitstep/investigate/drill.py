"""Inject faults into a program, one per run, and count which of them are found and named.

1. The clean program runs twice: both must have the same bytes, and no difference.
2. What it called is listed, and faults are drawn from that by seed and number (`drill_draw`).
3. Each fault has a run of its own, recorded as the clean one was; two of them run side by side.
4. The recordings are compared, and the fault is judged (`drill_judge`).
5. Its line is appended to faults.jsonl. A drill that was killed goes on after the last line.

Faults without an effect are counted, and others drawn in their place.

>>> drill(["python", "train.py"], Path("drill"), faults=10).counts["exact"]  # doctest: +SKIP
9
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bitstep.errors import RunError, UsageError
from bitstep.investigate.drill_runs import Compare, Plan, Runs
from bitstep.observe.options import Level

PLAN, LINES = "drill.json", "faults.jsonl"

Said = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Drilled:
    """All faults of a drill so far."""

    folder: Path
    lines: tuple[dict[str, Any], ...]
    """As in faults.jsonl, in order of their numbers."""

    @property
    def counts(self) -> Counter[str]:
        """How many faults are null, exact, unnamed (found only) and missed."""
        return Counter(line["outcome"] for line in self.lines)

    def table(self) -> list[tuple[str, ...]]:
        """A row per kind: kind, injected, null, found, named exactly, not named, missed."""
        rows = []
        for kind in sorted({line["kind"] for line in self.lines}):
            counts = Counter(line["outcome"] for line in self.lines if line["kind"] == kind)
            real = counts.total() - counts["null"]
            numbers = (real, counts["null"], real - counts["missed"], counts["exact"])
            rows.append((kind, *map(str, (*numbers, counts["unnamed"], counts["missed"]))))
        return rows


def drill(
    command: Sequence[str],
    folder: Path,
    *,
    faults: int,
    seed: int = 0,
    level: Level = "op",
    rehash: bool = False,
    together: int = 2,
    keep: bool = False,
    warm: bool = False,
    compare: Compare | None = None,
    said: Said = lambda line: None,
) -> Drilled:
    """Inject faults until that many had an effect; `said` hears of each line.

    Args:
        command: the program, without `bitstep record`; "{run}" in a word is a folder of each run.
        folder: of this drill; one that was begun goes on.
        faults: how many with an effect.
        seed: of the draw.
        level: of the recordings.
        rehash: record with --rehash.
        together: how many runs side by side.
        keep: keep every recording, not only those of faults that were not named.
        warm: fork the runs of `python SCRIPT` from a process that has torch imported.
        compare: `diff.compare_runs` by default.

    Raises RunError for a program that does not repeat itself, or a folder of another drill.
    """
    if warm and not _is_script(command):
        raise UsageError(f"{' '.join(command)}: only python SCRIPT.py can be forked from warm")
    plan = Plan(tuple(command), seed, level, rehash)
    _open(folder, plan)
    runs = Runs(plan, folder, compare or _compare_runs(), keep, warm)
    lines = _read_lines(folder)
    with contextlib.closing(runs):
        runs.clean()
        for line in _faults(runs, lines, faults, together):
            with (folder / LINES).open("a") as file:
                file.write(json.dumps(line) + "\n")
            lines.append(line)
            said(line)
    return Drilled(folder, tuple(sorted(lines, key=lambda line: int(line["number"]))))


def _is_script(command: Sequence[str]) -> bool:
    python, *words = command
    return Path(python).name.startswith("python") and bool(words) and words[0].endswith(".py")


def _compare_runs() -> Compare:
    from bitstep.diff import compare_runs

    return compare_runs


def _open(folder: Path, plan: Plan) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path, text = folder / PLAN, json.dumps({"format": 1, **asdict(plan)}, indent=1) + "\n"
    if not path.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty: choose another directory with -o")
    if path.exists() and path.read_text() != text:
        raise RunError(f"{folder} holds another drill: see {path}, or choose another with -o")
    path.write_text(text)


def _read_lines(folder: Path) -> list[dict[str, Any]]:
    """The lines so far. One that was cut off by a kill is taken away: its fault comes again."""
    path = folder / LINES
    if not path.exists():
        return []
    whole, _, cut = path.read_text().rpartition("\n")
    if cut:
        path.write_text(whole + "\n" if whole else "")
    return [json.loads(line) for line in whole.splitlines()]


def _faults(
    runs: Runs, lines: Sequence[dict[str, Any]], faults: int, together: int
) -> Iterator[dict[str, Any]]:
    """Run faults side by side until enough of them had an effect; each line as it is there."""
    done = {int(line["number"]) for line in lines}
    real = sum(line["outcome"] != "null" for line in lines)
    numbers = (number for number in itertools.count() if number not in done)
    waiting: set[Future[dict[str, Any]]] = set()
    with ThreadPoolExecutor(max_workers=together) as pool:
        try:
            while real < faults or waiting:
                while len(waiting) < min(together, faults - real):
                    waiting.add(pool.submit(runs.fault, next(numbers)))
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for line in (future.result() for future in ended):
                    real += line["outcome"] != "null"
                    yield line
        except BaseException:  # Ctrl-C included: leaving the pool waits for every run
            pool.shutdown(wait=False, cancel_futures=True)
            runs.close()
            raise
