import os
import subprocess
import sys

from launch_fakes import any_running, wait_until

from bitstep.launch.parent import VARIABLE, child_environment

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
