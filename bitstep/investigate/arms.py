"""The arms of a proof: what is run, in which order, and what is done to it.

    reference       on the first number of processes; saves nothing before its end
    repeat          the same again, and never saves at all
    processes-W     one arm for each other number of processes
    resume          on the second number; saves on the way, is killed with SIGKILL at a seeded
                    moment, and goes on
    resume-again    goes on from a copy of what the kill left, on the first number of processes
    without-STREAM  the same with one stream left out of the restore: a control, must be caught

Every arm is a fresh process of the command that a person would type. As many run side by side as
there are cores for their threads.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bitstep.errors import RunError
from bitstep.launch.arm import Arm, run_arm
from bitstep.state.keys import key
from bitstep.state.streams import STREAMS
from bitstep.trace.index import read_index

TIMEOUT = 3600.0
"""Seconds after which an arm is given up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be proven."""

    recipe: str
    """Name or path, as it is given to `bitstep pretrain`."""
    changes: tuple[str, ...]
    """Values for --set, in every arm."""
    steps: int
    processes: tuple[int, ...]
    threads: int
    """Threads of one process: how many cores it takes."""
    seed: int
    folder: Path
    fault: str | None
    """A fault in every arm, to see the proof fail."""

    @property
    def save_every(self) -> int:
        """Steps between the checkpoints of the resume arm."""
        return max(1, self.steps // 4)

    @property
    def resume_processes(self) -> int:
        """The second number of processes, where there is one."""
        return self.processes[min(1, len(self.processes) - 1)]

    def whole_arm(self, processes: int) -> str:
        """The arm that trains from start to end on that many processes."""
        return "reference" if processes == self.processes[0] else f"processes-{processes}"

    def run(self, arm: str) -> Path:
        """The run directory of an arm."""
        return self.folder / arm

    def kill_at(self) -> tuple[int, float]:
        """The seeded moment: a step, and the part of the next one that passes before SIGKILL."""
        chance = random.Random(key("kill", self.seed))
        return chance.randint(self.save_every, self.steps - 2), chance.random()


@dataclass(frozen=True, slots=True)
class ArmReport:
    """One arm that was run."""

    name: str
    processes: int
    seconds: float
    exit: int
    """Exit status; an arm is judged by its end marker, see `loop`."""
    note: str = ""


Said = Callable[[ArmReport], None]


def run_arms(plan: Plan, said: Said) -> tuple[ArmReport, ...]:
    """Run every arm of the plan in its folder; `said` hears of each as it ends."""
    slots = Slots(os.cpu_count() or 1)

    def arm(name: str, processes: int, *words: str) -> ArmReport:
        with slots.taken(processes * plan.threads):
            return _pretrain(plan, name, processes, words)

    first, *others = plan.processes
    only_at_end = f"run.save_every={plan.steps}"
    jobs: list[Callable[[], ArmReport]] = [
        partial(arm, "reference", first, "--set", only_at_end),
        partial(arm, "repeat", first, "--set", "run.save_every=0"),
        *(partial(arm, f"processes-{w}", w, "--set", only_at_end) for w in others),
        partial(_killed_and_resumed, plan, slots),
    ]
    reports = _side_by_side(jobs, said)
    controls: list[Callable[[], ArmReport]] = [
        partial(_goes_on, plan, slots, "resume-again", None),
        *(
            partial(_goes_on, plan, slots, f"without-{stream}", f"restore-without={stream}")
            for stream in STREAMS
        ),
    ]
    return reports + _side_by_side(controls, said)


def _side_by_side(jobs: Sequence[Callable[[], ArmReport]], said: Said) -> tuple[ArmReport, ...]:
    # A thread per job: the kernel ends an arm together with the thread that started it.
    with ThreadPoolExecutor(max_workers=len(jobs)) as pool:
        futures = [pool.submit(job) for job in jobs]
        reports = []
        for future in futures:
            reports.append(future.result())
            said(reports[-1])
    return tuple(reports)


class Slots:
    """Cores, taken and given back; an arm that wants more than there are takes all of them."""

    def __init__(self, cores: int) -> None:
        self._cores, self._free = cores, cores
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, wanted: int) -> Iterator[None]:
        """Hold that many cores."""
        count = min(wanted, self._cores)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= count)
            self._free -= count
        try:
            yield
        finally:
            with self._changed:
                self._free += count
                self._changed.notify_all()


def _words(plan: Plan, name: str, processes: int, extra: Sequence[str]) -> list[str]:
    words = ["-q", "pretrain", plan.recipe, "-o", str(plan.run(name))]
    words += ["--processes", str(processes), "--steps", str(plan.steps)]
    for change in plan.changes:
        words += ["--set", change]
    if plan.fault is not None and "--fault" not in extra:
        words += ["--fault", plan.fault]
    return [*words, *extra]


def _pretrain(plan: Plan, name: str, processes: int, extra: Sequence[str]) -> ArmReport:
    log = plan.folder / f"{name}.log"
    result = run_arm(_words(plan, name, processes, extra), {}, log, TIMEOUT)
    return ArmReport(name, processes, result.seconds, result.exit)


def _killed_and_resumed(plan: Plan, slots: Slots) -> ArmReport:
    processes, saving = plan.resume_processes, f"run.save_every={plan.save_every}"
    with slots.taken(processes * plan.threads):
        step = _start_and_kill(plan, processes, saving)
        shutil.copytree(plan.run("resume"), plan.folder / "killed")
        report = _pretrain(plan, "resume", processes, ["--set", saving, "--resume"])
    note = f"killed after step {step} was recorded"
    return ArmReport(report.name, processes, report.seconds, report.exit, note)


def _start_and_kill(plan: Plan, processes: int, saving: str) -> int:
    """Start the resume arm, and SIGKILL all of it at the seeded moment; the last whole step."""
    run, (step, part) = plan.run("resume"), plan.kill_at()
    words = _words(plan, "resume", processes, ["--set", saving])
    arm = Arm.start(words, {}, plan.folder / "resume.log")
    try:
        began = time.monotonic()
        while _recorded(run) < step and arm.process.poll() is None:
            if time.monotonic() - began > TIMEOUT:
                raise RunError(f"the resume arm did not reach step {step}: see {arm.log}")
            time.sleep(0.01)
        time.sleep(part * (time.monotonic() - began) / (step + 1))
        arm.kill()
    finally:
        arm.close()
    return _recorded(run)


def _recorded(run: Path) -> int:
    index = run / "attempt-000" / "rank-00000.000.index"
    entries = read_index(index) if index.exists() else ()
    return max((entry.step for entry in entries), default=0)


def _goes_on(plan: Plan, slots: Slots, name: str, fault: str | None) -> ArmReport:
    processes = plan.processes[0]
    with slots.taken(processes * plan.threads):
        shutil.copytree(plan.folder / "killed", plan.run(name))
        words = ["--set", "run.save_every=0", "--resume"]
        return _pretrain(plan, name, processes, words + (["--fault", fault] if fault else []))
