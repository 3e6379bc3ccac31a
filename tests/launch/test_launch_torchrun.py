"""The line of README.md for a cluster, with a real torchrun and the real engine."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from launch_fakes import any_running, wait_until

ROOT = Path(__file__).parents[2]
VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT="
HANDLED = ["--signals-to-handle", "SIGTERM,SIGUSR1,SIGINT"]


def line() -> list[str]:
    """The words of README.md, on two processes."""
    (found,) = [t for t in (ROOT / "README.md").read_text().splitlines() if t.startswith(VARIABLE)]
    return shlex.split(found.replace("--nproc-per-node 8", "--nproc-per-node 2"))


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return str(probe.getsockname()[1])


@pytest.fixture
def start(tmp_path):
    """Starts a line in a folder of its own, and waits for its first step; ends it with the test."""
    started = []

    def start(words):
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PET_MASTER_PORT": free_port(),
        }
        log = tmp_path / f"{len(started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["env", *words, "--steps", "2000"],
                cwd=tmp_path,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        started.append(process)
        wait_until(lambda: "/2000  loss" in log.read_text() or process.poll() is not None, 120)
        assert process.poll() is None, log.read_text()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return process, [int(pid) for pid in children], log

    yield start
    for process in started:
        process.kill()
        process.wait()


def end_of(tmp_path: Path, attempt: int) -> Path:
    return tmp_path / "runs" / "nano" / f"attempt-{attempt:03d}" / "end.json"


@pytest.mark.long
def test_one_line_starts_stops_and_goes_on(start, tmp_path):
    steps = []
    for attempt, number in enumerate([signal.SIGUSR1, signal.SIGTERM]):
        process, workers, log = start(line())
        assert len(workers) == 2
        process.send_signal(number)
        assert process.wait(120) == 1, log.read_text()
        assert not any_running(workers)
        end = json.loads(end_of(tmp_path, attempt).read_text())
        assert end["status"] == "stopped"
        steps.append(end["step"])
    assert 0 < steps[0] < steps[1]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGKILL])
def test_a_torchrun_that_dies_leaves_no_orphans(number, start, tmp_path):
    words = [word for word in line() if word not in HANDLED]
    process, workers, log = start(words)
    process.send_signal(number)
    assert process.wait(60) == -number, log.read_text()
    wait_until(lambda: not any_running(workers), seconds=5)
    assert not end_of(tmp_path, 0).exists()
    process, _, _ = start(line())
    assert end_of(tmp_path, 1).parent.is_dir(), "the lock is free"
