"""Does recording change a program? Run it bare, bare again, and recorded, and compare the ends.

1. Every arm has the probe (`observe.probe`): the root of the state after each step, by rank.
2. Two bare arms show whether the program repeats itself. One that does not is unverified: nobody
   could tell what recording changed.
3. One arm is recorded as asked; one hashes every input again and begins a new file every step,
   so that it writes in another rhythm. Roots must equal those of the bare arms, step by step.
4. What recording adds is counted: rows, bytes hashed, bytes written, transfers from an
   accelerator, time.

>>> judge([("bare", {0: ["a"]}), ("bare again", {0: ["a"]}), ("recorded", {0: ["b"]})]).outcome
<Outcome.DIFFERENT: 1>
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bitstep.errors import RunError
from bitstep.launch.program import find_program, run_program
from bitstep.launch.record import BOOTSTRAP, environment
from bitstep.observe.options import PROBE, RecordOptions
from bitstep.records import Outcome, Verdict
from bitstep.trace.hashed import counted

Roots = Mapping[int, Sequence[str]]
"""Rank to the root of its state after each step."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One execution of the program."""

    name: str
    roots: Roots
    exit: int
    seconds: float
    rows: int = 0
    hashed: int = 0
    """Bytes."""
    written: int = 0
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Inertness:
    """What the arms say."""

    verdict: Verdict
    arms: tuple[Arm, ...]

    @property
    def steps(self) -> int:
        return max((len(roots) for roots in self.arms[0].roots.values()), default=0)

    def as_json(self) -> dict[str, Any]:
        """All of it, for `bitstep record --check-inert --json`."""
        arms = [{k: v for k, v in asdict(arm).items() if k != "roots"} for arm in self.arms]
        verdict = {"outcome": int(self.verdict.outcome), "title": self.verdict.title}
        return {**verdict, "reasons": list(self.verdict.reasons), "steps": self.steps, "arms": arms}


def check_inert(options: RecordOptions, command: Sequence[str]) -> Inertness:
    """Run the command four times, below the directory of the options, which must be new.

    Raises UsageError and RunError.
    """
    directory = options.directory
    if directory.exists() and any(directory.iterdir()):
        raise RunError(f"{directory} is not empty: name another directory with -o")
    busy = replace(options, rehash=True, steps_per_file=1)
    arms = tuple(
        _run(name, directory, recorded, command)
        for name, recorded in (
            ("bare", None),
            ("bare again", None),
            ("recorded", options),
            ("recorded, busier", busy),
        )
    )
    failed = [arm for arm in arms if arm.exit != arms[0].exit]
    verdict = judge([(arm.name, arm.roots) for arm in arms])
    if failed:
        reason = f"{failed[0].name} ended with {failed[0].exit}, bare with {arms[0].exit}"
        verdict = Verdict(Outcome.DIFFERENT, "recording changed how the program ends", (reason,))
    return Inertness(verdict, arms)


def judge(arms: Sequence[tuple[str, Roots]]) -> Verdict:
    """Compare the roots of the arms; the first two are the bare ones."""
    (name, bare), (_, again), *recorded = arms
    if not any(bare.values()):
        reason = "no process stepped an optimizer or called backward: nothing to compare"
        return Verdict(Outcome.UNVERIFIED, "unverified", (reason,))
    if (where := _first_difference(bare, again)) is not None:
        reason = f"two bare runs differ {where}: the program varies by itself"
        return Verdict(Outcome.UNVERIFIED, "unverified", (reason,))
    for other, roots in recorded:
        if (where := _first_difference(bare, roots)) is not None:
            reason = f"{other} differs from {name} {where}"
            return Verdict(Outcome.DIFFERENT, "not inert", (reason,))
    count = sum(len(roots) for roots in bare.values())
    reason = f"{count} states on {len(bare)} ranks are equal in {len(arms)} arms"
    return Verdict(Outcome.SAME, "inert", (reason,))


def _first_difference(left: Roots, right: Roots) -> str | None:
    if sorted(left) != sorted(right):
        return f"in its ranks: {sorted(left)} and {sorted(right)}"
    for rank in sorted(left):
        for step, (a, b) in enumerate(zip(left[rank], right[rank], strict=False), 1):
            if a != b:
                return f"on rank {rank} from state {step}: {a} and {b}"
        if len(left[rank]) != len(right[rank]):
            return f"on rank {rank}: {len(left[rank])} and {len(right[rank])} states"
    return None


def _run(name: str, directory: Path, options: RecordOptions | None, command: Sequence[str]) -> Arm:
    arm = directory / name.replace(", ", "-").replace(" ", "-")
    probe = arm / "probe"
    probe.mkdir(parents=True)
    base = {**os.environ, PROBE: str(probe.absolute())}
    if options is None:
        path = [str(BOOTSTRAP), *filter(None, [base.get("PYTHONPATH")])]
        variables = {**base, "PYTHONPATH": os.pathsep.join(path)}
    else:
        variables = environment(replace(options, directory=arm / "run"), base)
    began = time.perf_counter()
    exit_ = run_program(find_program(command[0]), command, variables)
    seconds = time.perf_counter() - began
    if options is None:
        return Arm(name, _read(probe), exit_, seconds)
    found = counted(arm / "run")
    return Arm(name, _read(probe), exit_, seconds, found.rows, found.hashed, found.written)


def _read(probe: Path) -> Roots:
    found: dict[int, list[str]] = {}
    for file in sorted(probe.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
        said = json.loads(file.read_bytes())
        found.setdefault(said["rank"], []).extend(said["roots"])
    return found
