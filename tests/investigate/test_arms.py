"""How arms are run: killed at their moment, never left behind, told of as they end."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest

from bitstep.errors import RunError
from bitstep.investigate import arms
from bitstep.investigate.arms import ArmReport, Live, Plan, Slots, _side_by_side
from bitstep.launch.arm import Arm, run_arm
from bitstep.trace import TraceWriter

STEPS = 8


def plan(folder):
    return Plan("nano", (), STEPS, (1, 2), 1, 7, whole_sums=None, folder=folder, fault=None)


def script(monkeypatch, text):
    """Have every arm run these lines of Python instead of bitstep; the words are in sys.argv."""

    def start(words, env, log):
        command = [sys.executable, "-c", text, *words]
        with log.open("ab") as output:
            process = subprocess.Popen(command, stderr=output, start_new_session=True)
        return Arm(process, log)

    monkeypatch.setattr(arms.Arm, "start", start)


def training(run, steps=STEPS):
    """Lines that record step after step in `run`, with a checkpoint at step 2."""
    return (
        "import pathlib, time\n"
        "from bitstep.trace import TraceWriter\n"
        f"run = pathlib.Path({str(run)!r})\n"
        "saved = run / 'checkpoints' / 'step-00000002'\n"
        "with TraceWriter(run / 'attempt-000', 0) as trace:\n"
        f"    for step in range({steps} + 1):\n"
        "        trace.end_step(step, 7)\n"
        "        if step == 2:\n"
        "            saved.mkdir(parents=True)\n"
        "            (saved / 'COMPLETE').touch()\n"
        "        time.sleep(SECONDS)\n"
        "(run / 'attempt-000' / 'end.json').touch()\n"
    )


def kill_too_late(monkeypatch, times):
    """Have the first so many kills find an arm that has just ended."""
    kill, calls = Arm.kill, []

    def late(arm):
        calls.append(arm)
        if len(calls) <= times:
            arm.process.wait()
        kill(arm)

    monkeypatch.setattr(Arm, "kill", late)


def start_and_kill(tmp_path, starts=1):
    live = Live()
    try:
        step = arms._start_and_kill(plan(tmp_path), live, 1, "run.save_every=2")
    finally:
        live.end()
    assert len(live._arms) == starts
    return step


def test_the_moment_of_the_kill_is_seeded_and_leaves_room_on_both_sides(tmp_path):
    moments = {replace(plan(tmp_path), seed=seed).kill_at() for seed in range(50)}
    assert plan(tmp_path).kill_at() == plan(tmp_path).kill_at()
    assert len(moments) == 50
    assert all(2 <= step <= STEPS - 2 and 0 <= part < 1 for step, part in moments)


@pytest.mark.parametrize("step", [2, 6])
def test_the_kill_comes_within_a_step_of_its_moment_however_slow_the_start(
    tmp_path, monkeypatch, step
):
    monkeypatch.setattr(Plan, "kill_at", lambda plan: (step, 0.9))
    slow_start = "import time; time.sleep(1)\n"
    script(monkeypatch, slow_start + training(tmp_path / "resume").replace("SECONDS", "0.2"))
    assert step <= start_and_kill(tmp_path) <= step + 1
    assert not (tmp_path / "resume" / "attempt-000" / "end.json").exists()


def test_the_kill_waits_for_a_whole_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(Plan, "kill_at", lambda plan: (1, 0.0))
    script(monkeypatch, training(tmp_path / "resume").replace("SECONDS", "0.2"))
    assert start_and_kill(tmp_path) >= 2


def test_an_arm_that_finished_first_is_started_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(Plan, "kill_at", lambda plan: (STEPS - 2, 0.9))
    script(monkeypatch, training(tmp_path / "resume").replace("SECONDS", "0.1"))
    kill_too_late(monkeypatch, times=1)
    assert start_and_kill(tmp_path, starts=2) in (STEPS - 2, STEPS - 1)
    assert not (tmp_path / "resume" / "attempt-000" / "end.json").exists()


def test_an_arm_that_always_finishes_first_is_given_up(tmp_path, monkeypatch):
    script(monkeypatch, training(tmp_path / "resume").replace("SECONDS", "0.01"))
    kill_too_late(monkeypatch, times=3)
    with pytest.raises(RunError, match="resume finished 3 times before it was killed"):
        start_and_kill(tmp_path)


def test_an_arm_that_fails_before_its_moment_is_told_with_its_last_line(tmp_path, monkeypatch):
    script(
        monkeypatch, "import sys; print('a\\nbitstep: no room\\n', file=sys.stderr); sys.exit(2)"
    )
    with pytest.raises(RunError, match=r"ended with status 2 before step \d: bitstep: no room$"):
        start_and_kill(tmp_path)


def test_an_arm_that_another_killed_is_a_failure_and_not_its_moment(tmp_path, monkeypatch):
    script(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(RunError, match=r"ended with status -9 before step \d: see "):
        start_and_kill(tmp_path)


def test_steps_are_counted_over_all_files_of_a_trace(tmp_path):
    with TraceWriter(tmp_path / "attempt-000", 0, steps_per_file=2) as trace:
        assert arms._recorded(tmp_path) == 0
        for step in range(1, 6):
            trace.end_step(step, 7)
            assert arms._recorded(tmp_path) == step
    assert len(list(tmp_path.glob("attempt-000/*.index"))) == 3
    (tmp_path / "attempt-000" / "rank-00000.003.index").touch()
    assert arms._recorded(tmp_path) == 5


def test_an_arm_is_told_of_when_it_ends_and_not_when_its_turn_comes():
    def job(name, seconds):
        time.sleep(seconds)
        return ArmReport(name, 1, seconds, 0)

    told = []
    jobs = [partial(job, "slow", 0.3), partial(job, "fast", 0.0)]
    reports = _side_by_side(jobs, Live(), lambda report: told.append(report.name))
    assert told == ["fast", "slow"]
    assert [report.name for report in reports] == ["slow", "fast"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RunError])
def test_whatever_is_raised_no_arm_is_left_and_none_starts_any_more(tmp_path, monkeypatch, error):
    script(monkeypatch, "import sys, time; time.sleep(float(sys.argv[1]))")
    live, slots = Live(), Slots(2)

    def job(name, seconds):
        with slots.taken(1):
            result = run_arm([seconds], {}, tmp_path / name, timeout=60, start=live.start)
        return ArmReport(name, 1, result.seconds, result.exit)

    def said(report):
        raise error("now")

    began = time.monotonic()
    jobs = [partial(job, "quick", "0"), *(partial(job, f"long-{i}", "60") for i in range(3))]
    with pytest.raises(error, match="now"):
        _side_by_side(jobs, live, said)
    assert time.monotonic() - began < 20
    assert {arm.process.poll() for arm in live._arms} == {0, -signal.SIGKILL}
    assert len(live._arms) <= 3, "one waited for its cores, and was not started"
    with pytest.raises(RunError, match="the proof has ended: late"):
        live.start(["0"], {}, tmp_path / "late.log")


def test_a_copy_that_fails_is_one_line_with_the_reason(tmp_path):
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "link").symlink_to(tmp_path / "gone")  # copytree collects these
    with pytest.raises(RunError, match=r"cannot copy .*: \[Errno 2\] No such file.*; make room"):
        arms._copy(tmp_path / "killed", tmp_path / "target")
    with pytest.raises(RunError, match=r"cannot copy .*: No such file or directory; make room"):
        arms._copy(tmp_path / "nothing", tmp_path / "other")


def test_an_arm_waits_for_its_cores_and_never_for_more_than_there_are():
    slots = Slots(2)
    with slots.taken(1), slots.taken(1):
        assert slots._free == 0
    with slots.taken(4):
        assert slots._free == 0
    assert slots._free == 2
