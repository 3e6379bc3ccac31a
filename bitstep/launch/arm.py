"""Start `bitstep` anew as an arm: a fresh process, its own session, a log, and ways to kill it.

1. `Arm.start` starts it. It ends with this process, however that ends.
2. `Arm.kill` sends SIGKILL to the launcher, to one worker or to all, without any warning.
3. `run_arm` starts one and waits for it.

>>> run_arm(["--version"], env={}, log=Path("/tmp/version.log"), timeout=60).exit
0
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bitstep.errors import RunError
from bitstep.launch import parent


@dataclass(frozen=True, slots=True)
class ArmResult:
    """How an arm ended."""

    exit: int
    """Exit status, or minus the number of the signal that ended it."""
    seconds: float
    """Wall time from start to end."""


@dataclass
class Arm:
    """A `bitstep` command that runs beside this process. Linux only: it reads /proc."""

    process: subprocess.Popen[bytes]
    log: Path
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def start(cls, words: Sequence[str], env: Mapping[str, str], log: Path) -> Arm:
        """Start `python -m bitstep WORDS` with `env` added to this environment."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*parent.interpreter(), "-m", "bitstep", *words],
                env={**os.environ, **parent.child_environment(), **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process, log)

    def workers(self) -> dict[int, int]:
        """Process id of each worker that runs now, by rank; {0: launcher} without torchrun."""
        found = {}
        for pid in _children(self.process.pid):
            rank = _variable(pid, "RANK")
            if rank.isdecimal():
                found[int(rank)] = pid
        return found or {0: self.process.pid}

    def kill(self, rank: int | None = None) -> None:
        """SIGKILL the worker of that rank, or by default the launcher and every worker."""
        if rank is not None:
            pid = self.workers().get(rank)
            if pid is None:
                raise RunError(f"no worker of rank {rank} runs; see {self.log}")
            _kill(pid)
            return
        workers = self.workers()
        self.kill_launcher()
        for pid in workers.values():
            _kill(pid)

    def kill_launcher(self) -> None:
        """SIGKILL the launcher alone; the kernel then ends its workers."""
        self.process.kill()

    def wait(self, timeout: float) -> ArmResult:
        """Wait for the end. Raises RunError after `timeout` seconds, and kills the arm."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RunError(f"an arm took longer than {timeout:g} s: see {self.log}") from None
        finally:
            self.close()
        return ArmResult(status, time.monotonic() - self.started)

    def close(self) -> None:
        """Make sure that nothing of the arm is left."""
        if self.process.poll() is None:
            self.kill()
            self.process.wait()


class Start(Protocol):
    """What `Arm.start` is; another one may keep a list of the arms."""

    def __call__(self, words: Sequence[str], env: Mapping[str, str], log: Path) -> Arm: ...


def run_arm(
    words: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    timeout: float,
    start: Start = Arm.start,
) -> ArmResult:
    """Run `python -m bitstep WORDS` to its end, output to `log`. Raises RunError when too long.

    Args:
        words: the command line after `bitstep`.
        env: added to the environment of this process.
        log: receives stdout and stderr, appended.
        timeout: seconds.
        start: starts the arm, for a caller that wants to hold it while it runs.
    """
    return start(words, env, log).wait(timeout)


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and _parent(entry) == pid:
            found.append(int(entry.name))
    return found


def _parent(entry: Path) -> int:
    try:
        text = (entry / "stat").read_text()
    except OSError:  # it ended meanwhile
        return 0
    # pid (name) state ppid: the name may hold spaces and brackets.
    return int(text.rpartition(")")[2].split()[1])


def _variable(pid: int, name: str) -> str:
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    for item in block.split(b"\0"):
        key, _, value = item.partition(b"=")
        if key == name.encode():
            return value.decode()
    return ""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
