"""25 SIGKILLs on two processes: every resume ends with the root of a run that was not disturbed.

The process that dies is one worker, all of them with the launcher, or the launcher alone. Twelve
die while a checkpoint is written, held at a named position by a fault that only waits; thirteen at
a seeded moment of a seeded step. Where each one was is printed, for the record.
"""

import json
import random
import time
from pathlib import Path

import pytest

from bitstep.launch.arm import Arm, run_arm

STEPS, EVERY = 12, 4
RECIPE = [
    "nano", "--processes", "2", "--steps", str(STEPS),
    "--set", f"run.save_every={EVERY}", "--set", "schedule.warmup=4", "--set", "run.eval_every=0",
    "--set", "data.sequence=48",
]  # fmt: skip
AT_POSITIONS = [
    ("write rank file", "worker 0"), ("write rank file", "worker 1"), ("write rank file", "all"),
    ("written", "worker 1"), ("written", "all"),
    ("index", "worker 0"), ("index", "launcher"),
    ("before rename", "worker 0"), ("before rename", "all"), ("before rename", "launcher"),
    ("renamed", "worker 1"), ("renamed", "all"),
]  # fmt: skip
VICTIMS = ["worker 0", "worker 1", "all", "launcher"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    result = run_arm(["pretrain", *RECIPE, "-o", str(folder / "run")], {}, folder / "log", 120)
    assert result.exit == 0
    return root(folder / "run")


def root(run: Path) -> str:
    end = json.loads(sorted(run.glob("attempt-*/end.json"))[-1].read_text())
    assert (end["status"], end["step"]) == ("finished", STEPS)
    return end["root"]


def wait_for(arm: Arm, text: str) -> None:
    deadline = time.monotonic() + 120
    while text not in arm.log.read_text():
        assert arm.process.poll() is None, arm.log.read_text()
        assert time.monotonic() < deadline, f"never came to {text!r}"
        time.sleep(0.005)


def kill(arm: Arm, victim: str) -> str:
    """Kill, wait until nothing of the arm is left, and say what its log said last."""
    where = last_position(arm.log)
    if victim == "all":
        arm.kill()
    elif victim == "launcher":
        arm.kill_launcher()
    else:
        arm.kill(int(victim.removeprefix("worker ")))
    arm.wait(60)
    return where


def last_position(log: Path) -> str:
    lines = [line for line in log.read_text().splitlines() if ": step " in line]
    return lines[-1].partition(": ")[2] if lines else "before the first step"


def resumed_root(run: Path, log: Path) -> str:
    result = run_arm(["pretrain", *RECIPE, "-o", str(run), "--resume"], {}, log, 120)
    assert result.exit == 0, log.read_text()
    return root(run)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("position", "victim"), AT_POSITIONS)
def test_killed_while_it_saves(undisturbed, tmp_path, capsys, position, victim):
    words = ["-v", "pretrain", *RECIPE, "-o", str(tmp_path / "run")]
    words += ["--fault", f"pause-at={position}"]
    arm = Arm.start(words, {}, tmp_path / "killed.log")
    try:
        wait_for(arm, f"step {2 * EVERY}: checkpoint: {position}")
        time.sleep(0.1)
        where = kill(arm, victim)
    finally:
        arm.close()
    assert f"checkpoint: {position}" in where
    assert resumed_root(tmp_path / "run", tmp_path / "resumed.log") == undisturbed
    with capsys.disabled():
        print(f"\nkilled {victim:9} at {where}: resumed to {undisturbed}")


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(13))
def test_killed_at_a_random_moment(undisturbed, tmp_path, capsys, seed):
    chance = random.Random(seed)
    step, victim = chance.randint(1, STEPS - 1), VICTIMS[seed % len(VICTIMS)]
    words = ["-v", "pretrain", *RECIPE, "-o", str(tmp_path / "run")]
    arm = Arm.start(words, {}, tmp_path / "killed.log")
    try:
        wait_for(arm, f"step {step}: forward")
        time.sleep(chance.random() * 0.25)
        where = kill(arm, victim)
    finally:
        arm.close()
    assert resumed_root(tmp_path / "run", tmp_path / "resumed.log") == undisturbed
    with capsys.disabled():
        print(f"\nkilled {victim:9} at {where}: resumed to {undisturbed}")
