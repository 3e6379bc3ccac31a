import contextlib
import os
import signal

import pytest
from launch_fakes import any_running, wait_until

from bitstep.errors import RunError
from bitstep.launch.arm import Arm, run_arm


@pytest.fixture
def slow(tmp_path):
    """A package `bitstep` in a folder of its own, whose command never ends and has one child."""
    (tmp_path / "bitstep").mkdir()
    (tmp_path / "bitstep" / "__init__.py").touch()
    (tmp_path / "bitstep" / "__main__.py").write_text(
        "import os, subprocess, sys, time\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "if 'one' not in sys.argv:\n"
        "    for rank in range(2):\n"
        "        environment = {**os.environ, 'RANK': str(rank)}\n"
        "        subprocess.Popen(sleep, env=environment, start_new_session=True)\n"
        "print('started', flush=True)\n"
        "time.sleep(60)\n"
    )
    return {"PYTHONPATH": str(tmp_path)}


def start(words, env, log):
    """Started outside the checkout, where `python -m` would find the real package."""
    with contextlib.chdir(log.parent):
        return _start(words, env, log)


def _start(words, env, log):
    arm = Arm.start(words, env, log)
    wait_until(lambda: "started" in log.read_text(), seconds=20)
    return arm


def test_an_arm_is_a_fresh_bitstep_with_a_log(tmp_path):
    log = tmp_path / "logs" / "version.log"
    result = run_arm(["--version"], {}, log, timeout=60)
    assert result.exit == 0
    assert result.seconds > 0
    assert log.read_text().startswith("bitstep ")


def test_an_arm_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "click.py").write_text("raise SystemExit('the wrong click')\n")
    monkeypatch.chdir(tmp_path)
    assert run_arm(["--version"], {}, tmp_path / "log", timeout=60).exit == 0


def test_an_arm_gives_back_the_status_of_its_command(tmp_path):
    assert run_arm(["no-such-verb"], {}, tmp_path / "log", timeout=60).exit == 2


def test_an_arm_is_in_a_session_of_its_own(tmp_path, slow):
    arm = start(["one"], slow, tmp_path / "log")
    assert os.getsid(arm.process.pid) == arm.process.pid
    arm.close()


def test_kill_takes_the_launcher_and_every_worker(tmp_path, slow):
    arm = start([], slow, tmp_path / "log")
    workers = arm.workers()
    assert sorted(workers) == [0, 1]
    arm.kill()
    assert arm.wait(timeout=10).exit == -signal.SIGKILL
    wait_until(lambda: not any_running(list(workers.values())), seconds=5)


def test_kill_of_one_rank_leaves_the_others(tmp_path, slow):
    arm = start([], slow, tmp_path / "log")
    workers = arm.workers()
    arm.kill(rank=1)
    wait_until(lambda: not any_running([workers[1]]), seconds=5)
    assert any_running([workers[0]])
    with pytest.raises(RunError, match="no worker of rank 7 runs"):
        arm.kill(rank=7)
    arm.close()
    wait_until(lambda: not any_running(list(workers.values())), seconds=5)


def test_without_torchrun_the_command_itself_is_rank_0(tmp_path, slow):
    arm = start(["one"], slow, tmp_path / "log")
    assert arm.workers() == {0: arm.process.pid}
    arm.kill(rank=0)
    assert arm.wait(timeout=10).exit == -signal.SIGKILL


def test_an_arm_that_takes_too_long_is_ended_and_its_log_is_named(tmp_path, slow):
    log = tmp_path / "log"
    arm = start([], slow, log)
    workers = arm.workers()
    with pytest.raises(RunError) as caught:
        arm.wait(timeout=0.1)
    assert str(caught.value) == f"an arm took longer than 0.1 s: see {log}"
    wait_until(lambda: not any_running([arm.process.pid, *workers.values()]), seconds=5)
