"""The arms of a proof: what is run, in which order, and what is done to it.

    reference       on the first number of processes; saves nothing before its end
    repeat          the same again, and never saves at all
    processes-W     one arm for each other number of processes
    whole-sums      on another number of processes, with the other end of the tree local
    resume          on the second number; saves on the way, is killed with SIGKILL at a seeded
                    moment, and goes on
    resume-again    goes on from a copy of what the kill left, on the first number of processes
    without-STREAM  the same with one stream left out of the restore: a control, must be caught

Every arm is a fresh process of the command that a person would type. As many run side by side as
there are cores for their threads. When one of them raises, or on Ctrl-C, all of them are killed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bitstep.checkpoint.format import MARKER
from bitstep.errors import RunError
from bitstep.launch.arm import Arm, run_arm
from bitstep.state.keys import key
from bitstep.state.streams import STREAMS
from bitstep.trace.index import FileName
from bitstep.trace.load import read_index
from bitstep.train.attempt import END, attempt_folder, checkpoints_folder

TIMEOUT = 3600.0
"""Seconds after which an arm is given up."""
TRIES = 3
"""How often the resume arm is started before it is given up as too fast to be killed."""


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
    whole_sums: int | None
    """Number of processes of the arm with whole sums; None where the fan-ins allow none."""
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
    """Run every arm of the plan in its folder; `said` hears of each as it ends.

    Raises RunError if an arm takes too long, or the resume arm was not killed at its moment.
    """
    slots, live = Slots(os.cpu_count() or 1), Live()

    def arm(name: str, processes: int, *words: str) -> ArmReport:
        with slots.taken(processes * plan.threads):
            return _pretrain(plan, live, name, processes, words)

    first, *others = plan.processes
    only_at_end = f"run.save_every={plan.steps}"
    jobs: list[Callable[[], ArmReport]] = [
        partial(arm, "reference", first, "--set", only_at_end),
        partial(arm, "repeat", first, "--set", "run.save_every=0"),
        *(partial(arm, f"processes-{w}", w, "--set", only_at_end) for w in others),
        partial(_killed_and_resumed, plan, slots, live),
    ]
    if plan.whole_sums is not None:
        whole = ("--set", only_at_end, "--sums", "whole")
        jobs.append(partial(arm, "whole-sums", plan.whole_sums, *whole))
    reports = _side_by_side(jobs, live, said)
    controls: list[Callable[[], ArmReport]] = [
        partial(_goes_on, plan, slots, live, "resume-again", None),
        *(
            partial(_goes_on, plan, slots, live, f"without-{stream}", f"restore-without={stream}")
            for stream in STREAMS
        ),
    ]
    return reports + _side_by_side(controls, live, said)


def _side_by_side(
    jobs: Sequence[Callable[[], ArmReport]], live: Live, said: Said
) -> tuple[ArmReport, ...]:
    # A thread per job: the kernel ends an arm together with the thread that started it.
    with ThreadPoolExecutor(max_workers=len(jobs)) as pool:
        try:
            futures = [pool.submit(job) for job in jobs]
            for future in as_completed(futures):
                said(future.result())
        except BaseException:  # Ctrl-C included: leaving the pool waits for every arm
            pool.shutdown(wait=False, cancel_futures=True)
            live.end()
            raise
    return tuple(future.result() for future in futures)


class Live:
    """The arms that were started; `end` kills those that run, and then none starts any more."""

    def __init__(self) -> None:
        self._arms: list[Arm] = []
        self._ended = False
        self._lock = threading.Lock()

    def start(self, words: Sequence[str], env: Mapping[str, str], log: Path) -> Arm:
        """`Arm.start`. Raises RunError after `end`."""
        with self._lock:
            if self._ended:
                raise RunError(f"not started, the proof has ended: {log.stem}")
            self._arms.append(Arm.start(words, env, log))
            return self._arms[-1]

    def end(self) -> None:
        """Kill every arm that runs."""
        with self._lock:
            self._ended = True
            for arm in self._arms:
                arm.close()


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


def _pretrain(plan: Plan, live: Live, name: str, processes: int, extra: Sequence[str]) -> ArmReport:
    log, words = plan.folder / f"{name}.log", _words(plan, name, processes, extra)
    result = run_arm(words, {}, log, TIMEOUT, start=live.start)
    return ArmReport(name, processes, result.seconds, result.exit)


def _killed_and_resumed(plan: Plan, slots: Slots, live: Live) -> ArmReport:
    processes, saving = plan.resume_processes, f"run.save_every={plan.save_every}"
    with slots.taken(processes * plan.threads):
        step = _start_and_kill(plan, live, processes, saving)
        _copy(plan.run("resume"), plan.folder / "killed")
        report = _pretrain(plan, live, "resume", processes, ["--set", saving, "--resume"])
    note = f"killed after step {step} was recorded"
    return ArmReport(report.name, processes, report.seconds, report.exit, note)


def _start_and_kill(plan: Plan, live: Live, processes: int, saving: str) -> int:
    """Start the resume arm, and SIGKILL all of it at the seeded moment; the last whole step."""
    run, log, (step, part) = plan.run("resume"), plan.folder / "resume.log", plan.kill_at()
    words = _words(plan, "resume", processes, ["--set", saving])
    for number in range(TRIES):
        arm = live.start(words, {}, log)
        try:
            # Each try comes a little earlier: the same moment might be too late again.
            was_killed = _kill_at(arm, run, step, part * (1 - number / (TRIES - 1)))
        finally:
            arm.close()
        if not (attempt_folder(run, 0) / END).exists():
            if was_killed and arm.process.returncode == -signal.SIGKILL:
                return _recorded(run)
            status = arm.process.returncode
            raise RunError(f"resume ended with status {status} before step {step}: {_said(log)}")
        shutil.rmtree(run)
    raise RunError(f"resume finished {TRIES} times before it was killed: use more --steps")


def _kill_at(arm: Arm, run: Path, step: int, part: float) -> bool:
    """Kill the arm when that step is recorded, a checkpoint is whole, and part of a step is over.

    False if it ended before. Raises RunError if it takes too long.
    """
    deadline = time.monotonic() + TIMEOUT
    first, since = 0, 0.0
    while (recorded := _recorded(run)) < step or not _has_checkpoint(run):
        if arm.process.poll() is not None:
            return False
        now = time.monotonic()
        if now > deadline:
            raise RunError(f"the resume arm did not reach step {step}: see {arm.log}")
        # From the first step on: what comes before it is imports.
        first, since = (recorded, now) if not first else (first, since)
        time.sleep(0.01)
    if first:
        time.sleep(part * (time.monotonic() - since) / max(1, recorded - first))
    arm.kill()
    return True


def _recorded(run: Path) -> int:
    """The last step in the trace of process 0; 0 before the first."""
    files = [FileName.parse(p.name) for p in attempt_folder(run, 0).glob("rank-00000.*.index")]
    for file in sorted((f for f in files if f is not None), reverse=True):
        # A file that was just begun has no entry yet.
        last = max((e.step for e in read_index(attempt_folder(run, 0) / file.index)), default=-1)
        if last >= 0:
            return last
    return 0


def _has_checkpoint(run: Path) -> bool:
    return any(checkpoints_folder(run).glob(f"step-*/{MARKER}"))


def _said(log: Path) -> str:
    """The last line of a log."""
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), f"see {log}")


def _copy(run: Path, target: Path) -> None:
    try:
        shutil.copytree(run, target)
    except OSError as error:
        # shutil.Error lists every file that failed, with its reason.
        listed = isinstance(error, shutil.Error)
        reason = error.args[0][0][2] if listed else error.strerror
        raise RunError(f"cannot copy {run} to {target}: {reason}; make room") from None


def _goes_on(plan: Plan, slots: Slots, live: Live, name: str, fault: str | None) -> ArmReport:
    processes = plan.processes[0]
    with slots.taken(processes * plan.threads):
        _copy(plan.folder / "killed", plan.run(name))
        words = ["--set", "run.save_every=0", "--resume"]
        words += ["--fault", fault] if fault else []
        return _pretrain(plan, live, name, processes, words)
