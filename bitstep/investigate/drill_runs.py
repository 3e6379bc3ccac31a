"""The runs of a drill: the clean program twice, then one for each fault, each recorded.

1. Every run has a folder: its recording, what the faults left (`faults/`), its output (`log`).
2. `Runs.clean` refuses a program that does not repeat itself: nothing could be told from it.
3. `Runs.fault` gives back what becomes a line of faults.jsonl.

    runs = Runs(plan, folder, compare_runs, keep=False)
    runs.clean()
    runs.fault(0)["outcome"]
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bitstep.diff.difference import Difference
from bitstep.errors import BitstepError, RunError
from bitstep.faults.environment import fault_environment
from bitstep.faults.flip import Flip
from bitstep.faults.receipts import read_receipts
from bitstep.faults.state import first_difference
from bitstep.investigate.arms import Live
from bitstep.investigate.drill_draw import Program, draw, read_program
from bitstep.investigate.drill_judge import Judged, Lines, judge
from bitstep.launch import record
from bitstep.launch.arm import run_arm
from bitstep.launch.warm import Warm
from bitstep.observe.options import Level, RecordOptions
from bitstep.records import Outcome, Record
from bitstep.trace.run import read_run

TIMEOUT = 900.0
"""Seconds after which a run is given up."""
PLACE = "{run}"
"""In the command: a folder made for each run."""

Compare = Callable[[Path, Path], Difference]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is drilled; two drills with the same plan are one."""

    command: tuple[str, ...]
    seed: int
    level: Level
    rehash: bool


class Runs:
    """The runs of a drill, clean and faulty."""

    def __init__(
        self, plan: Plan, folder: Path, compare: Compare, keep: bool, warm: bool = False
    ) -> None:
        self.live = Live()
        self._warm = Warm(folder / "warm.log") if warm else None
        self._plan, self._folder, self._compare, self._keep = plan, folder, compare, keep
        self._program: Program
        self._lines: Lines

    def clean(self) -> None:
        """Run the clean program twice, unless that was done. Raises RunError if they differ."""
        clean = self._folder / "clean"
        if not (clean / "done").exists():
            for name in ("clean", "again"):
                shutil.rmtree(self._folder / name, ignore_errors=True)
                status = self._run(name, (), lists_calls=name == "clean")
                if status:
                    log = self._folder / name / "log"
                    raise RunError(f"the clean program ended with status {status}: see {log}")
            self._check_clean()
            (clean / "done").touch()
        self._program = read_program(clean / "faults")
        self._lines = Lines(self._program, list(_records(clean / "recording")))

    def _check_clean(self) -> None:
        clean, again = self._folder / "clean", self._folder / "again"
        effect = first_difference(clean / "faults", again / "faults")
        if effect is not None:
            raise RunError(
                f"the clean program does not repeat itself: {', '.join(effect['streams'])} of step "
                f"{effect['step']} differ; make it deterministic first"
            )
        difference = self._compare(clean / "recording", again / "recording")
        if difference.outcome is not Outcome.SAME:
            raise RunError(f"two clean recordings do not compare as equal: {difference.title}")

    def _run(self, name: str, flips: Sequence[Flip], lists_calls: bool = False) -> int:
        """Run the program, recorded, in a folder of that name; its exit status."""
        folder = self._folder / name
        work = folder / "work"
        work.mkdir(parents=True)
        command = [word.replace(PLACE, str(work)) for word in self._plan.command]
        environment = fault_environment(folder / "faults", flips, lists_calls=lists_calls)
        if self._warm is not None:
            return self._run_warm(folder, command, environment)
        words = ["-q", "record", "-o", str(folder / "recording"), "--level", self._plan.level]
        words += ["--rehash"] if self._plan.rehash else []
        started = self.live.start
        return run_arm([*words, "--", *command], environment, folder / "log", TIMEOUT, started).exit

    def _run_warm(
        self, folder: Path, command: Sequence[str], environment: Mapping[str, str]
    ) -> int:
        assert self._warm is not None
        plan = self._plan
        options = RecordOptions(folder / "recording", level=plan.level, rehash=plan.rehash)
        record.take(options, command, None)
        variables = record.environment(options, {**os.environ, **environment})
        return self._warm.run(command[1:], variables, folder / "log", TIMEOUT)

    def _compared(self, name: str) -> Difference | str:
        """The clean recording and another one, compared; or why they could not be."""
        try:
            recordings = [self._folder / run / "recording" for run in ("clean", name)]
            return self._compare(recordings[0], recordings[1])
        except BitstepError as error:
            return str(error)

    def close(self) -> None:
        """Kill every run that is left."""
        self.live.end()
        if self._warm is not None:
            self._warm.close()

    def fault(self, number: int) -> dict[str, Any]:
        """Run the program with fault `number`, and judge it: a line of faults.jsonl."""
        began = time.monotonic()
        flip = draw(self._program, self._plan.seed, number)
        name = f"fault-{number:05d}"
        folder, clean = self._folder / name, self._folder / "clean"
        shutil.rmtree(folder, ignore_errors=True)  # of a drill that was killed
        status = self._run(name, [flip])
        receipts = read_receipts(folder / "faults")
        effect = first_difference(clean / "faults", folder / "faults")
        difference = self._compared(name) if receipts else "not compared"
        judged = judge(flip, receipts, effect, difference, self._lines)
        line = _line(number, flip, status, receipts, effect, difference, judged)
        if not self._keep and judged.outcome in ("null", "exact"):
            shutil.rmtree(folder)
        return {**line, "seconds": round(time.monotonic() - began, 2)}


def _line(
    number: int,
    flip: Flip,
    status: int,
    receipts: Sequence[dict[str, Any]],
    effect: dict[str, Any] | None,
    difference: Difference | str,
    judged: Judged,
) -> dict[str, Any]:
    causes = () if isinstance(difference, str) else difference.causes[:3]
    verdict = difference if isinstance(difference, str) else difference.title
    return {
        "number": number,
        "kind": kind_of(flip),
        "outcome": judged.outcome,
        "why": judged.why,
        "flip": flip.to_json(),
        "receipt": {k: v for k, v in receipts[0].items() if k != "flip"} if receipts else None,
        "effect": effect,
        "verdict": verdict,
        "causes": [
            {"kind": cause.kind.value, "title": cause.title, "where": asdict(cause.where)}
            for cause in causes
        ],
        "exit": status,
    }


def kind_of(flip: Flip) -> str:
    """output, or what a stray write hits: stray param, stray grad, stray moment, stray output."""
    if flip.kind != "stray":
        return f"{flip.kind}, collective" if flip.op.startswith("c10d") else flip.kind
    target = flip.tensor.partition(":")[0]
    return f"stray {target}" if target in ("param", "grad", "output") else "stray moment"


def _records(recording: Path) -> Iterator[Record]:
    for attempt in read_run(recording):
        yield from attempt.trace.records()
