"""Launchers and workers for the tests: real processes, no engine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

LAUNCHER = """
import json, sys
from bitstep.launch.signals import catch_stop
from bitstep.launch.torchrun import run_workers

if __name__ == "__main__":
    with catch_stop() as stop:
        failures = run_workers(sys.argv[2:], int(sys.argv[1]), stop)
        print(json.dumps([[f.rank, f.exit, f.message, f.is_user_error] for f in failures]))
        print(stop.exit)
"""

BEGIN = """
import os, signal, sys, time
from pathlib import Path
from bitstep.launch.parent import die_with_parent
from bitstep.launch.signals import catch_stop
from bitstep.launch.torchrun import abandon, write_error

die_with_parent()
rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])

def ready():
    (folder / f"ready-{rank}").write_text(str(os.getpid()))
"""

UNTIL_STOPPED = """
with catch_stop() as stop:
    ready()
    while not stop():
        time.sleep(0.01)
    abandon(75)
"""

ONE_DIES = """
import torch
from bitstep.launch.worker import join

processes = join()
ready()
for step in range(1000):
    processes.sum_int64(torch.ones(1, dtype=torch.int64))
    if step == 5 and rank == 1:
        (folder / "died").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
"""

ONE_DIES_ONE_IS_DEAF = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready()
if rank == 1:
    while not (folder / "ready-0").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    time.sleep(0.1)
"""

ONE_REFUSES = """
ready()
if rank == 1:
    write_error("shard 3 is damaged: restore an older checkpoint", True)
    abandon(2)
while True:
    time.sleep(0.1)
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def launch(folder: Path, worker: str, processes: int = 2) -> subprocess.Popen[str]:
    """A launcher of its own, whose workers say in `folder` that they are ready."""
    launcher = write(folder, "launcher.py", LAUNCHER)
    script = write(folder, "worker.py", BEGIN + worker)
    return subprocess.Popen(
        [sys.executable, str(launcher), str(processes), str(script), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def ready_pids(folder: Path, processes: int = 2) -> list[int]:
    files = [folder / f"ready-{rank}" for rank in range(processes)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def any_running(pids: Sequence[int]) -> bool:
    return any(is_running(pid) for pid in pids)


def leftovers(tmp: Path) -> list[str]:
    return [name for name in os.listdir(tmp) if name.startswith(("bitstep-", "torchelastic"))]
