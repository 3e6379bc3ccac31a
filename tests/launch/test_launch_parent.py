import os
import signal
import subprocess
import sys

import pytest
from launch_fakes import any_running, wait_until

from bitstep.launch.parent import TORCHRUN_VARIABLE, VARIABLE, child_environment

CHILD = """
import os, time
from bitstep.launch.parent import die_with_parent
die_with_parent()
print(os.getpid(), flush=True)
time.sleep(60)
"""
STARTER = f"""
import os, subprocess, sys, time
from bitstep.launch.parent import child_environment
environment = {{**os.environ, **child_environment()}}
subprocess.Popen([sys.executable, "-c", {CHILD!r}], env=environment, start_new_session=True)
time.sleep(60)
"""
ANSWER = "from bitstep.launch.parent import die_with_parent; die_with_parent(); print('alive')"


def test_a_worker_of_a_plain_torchrun_ends_with_it():
    torchrun = STARTER.replace("**child_environment()", "'TORCHELASTIC_RUN_ID': 'none'")
    starter = subprocess.Popen([sys.executable, "-c", torchrun], stdout=subprocess.PIPE, text=True)
    child = int(starter.stdout.readline())
    starter.send_signal(signal.SIGUSR1)  # torchrun dies of it
    starter.wait()
    starter.stdout.close()
    wait_until(lambda: not any_running([child]), seconds=5)


@pytest.mark.parametrize("name", [VARIABLE, TORCHRUN_VARIABLE])
def test_a_starter_that_ends_before_the_kernel_is_asked_is_noticed(name):
    # The parent that the second look finds is another one than the first, as after its death.
    looks = "import os; found = iter([7, 1]); os.getppid = lambda: next(found)\n"
    done = subprocess.run(
        [sys.executable, "-c", looks + ANSWER],
        env={**os.environ, name: "7"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == ("", 137)


def test_a_worker_that_a_shell_describes_outlives_that_shell():
    worker = STARTER.replace("**child_environment()", "'RANK': '0', 'WORLD_SIZE': '2'")
    starter = subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE, text=True)
    child = int(starter.stdout.readline())
    starter.kill()
    starter.wait()
    starter.stdout.close()
    try:
        assert any_running([child])
    finally:
        os.kill(child, signal.SIGKILL)


def run(starter: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ANSWER],
        env={**os.environ, VARIABLE: starter},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_child_ends_with_a_starter_that_is_killed():
    starter = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True)
    child = int(starter.stdout.readline())
    starter.kill()
    starter.wait()
    starter.stdout.close()
    wait_until(lambda: not any_running([child]), seconds=5)


def test_a_child_whose_starter_is_already_gone_ends_at_once():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    done = run(str(gone.pid))
    assert (done.stdout, done.returncode) == ("", 137)


def test_a_starter_that_lives_but_is_no_parent_is_not_meant():
    done = run("1")
    assert (done.stdout, done.returncode) == ("alive\n", 0)


def test_a_child_of_ours_lives_while_we_do():
    done = run(child_environment()[VARIABLE])
    assert (done.stdout, done.returncode) == ("alive\n", 0)


def test_without_a_starter_nothing_is_asked():
    assert run("").stdout == "alive\n"
