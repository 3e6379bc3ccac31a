"""The launcher and its workers, as real processes."""

from __future__ import annotations

import json
import signal
import time

import pytest
from launch_fakes import (
    ONE_DIES,
    ONE_DIES_ONE_IS_DEAF,
    ONE_REFUSES,
    UNTIL_STOPPED,
    any_running,
    launch,
    leftovers,
    ready_pids,
    wait_until,
)

from bitstep.launch.torchrun import GRACE

DEAD_PROCESS_ENDS_OTHERS = GRACE + 5


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def start(folder):
    """Starts a launcher that does not outlive the test, even when the test fails."""
    started = []

    def start(worker):
        started.append(launch(folder, worker))
        return started[-1]

    yield start
    for launcher in started:
        launcher.kill()
        launcher.communicate()


def test_sigterm_reaches_the_workers_without_killing_any(folder, start):
    launcher = start(UNTIL_STOPPED)
    pids = ready_pids(folder)
    launcher.send_signal(signal.SIGTERM)
    out, err = launcher.communicate(timeout=60)
    failures, status = out.splitlines()
    assert sorted(json.loads(failures)) == [[0, 75, "", False], [1, 75, "", False]]
    assert status == "75"
    assert err == ""
    assert not any_running(pids)
    assert leftovers(folder) == []


def test_a_dead_process_ends_the_others_and_is_named_as_the_cause(folder, start):
    launcher = start(ONE_DIES)
    out, _ = launcher.communicate(timeout=120)
    seconds = time.time() - float((folder / "died").read_text())
    first = json.loads(out.splitlines()[0])[0]
    assert first == [1, -signal.SIGKILL, "", False]
    assert seconds <= DEAD_PROCESS_ENDS_OTHERS
    assert not any_running(ready_pids(folder))


def test_a_killed_launcher_leaves_no_orphans(folder, start):
    launcher = start(UNTIL_STOPPED)
    pids = ready_pids(folder)
    launcher.kill()
    launcher.communicate(timeout=10)
    wait_until(lambda: not any_running(pids), seconds=5)


def test_the_error_of_one_worker_is_told_once_and_nothing_else_is(folder, start):
    launcher = start(ONE_REFUSES)
    out, err = launcher.communicate(timeout=60)
    assert json.loads(out.splitlines()[0])[0] == [
        1,
        2,
        "shard 3 is damaged: restore an older checkpoint",
        True,
    ]
    assert err == ""


@pytest.mark.long
def test_a_worker_that_hears_nothing_is_killed_in_the_stated_time(folder, start):
    launcher = start(ONE_DIES_ONE_IS_DEAF)
    pids = ready_pids(folder)
    began = time.monotonic()
    out, _ = launcher.communicate(timeout=2 * DEAD_PROCESS_ENDS_OTHERS)
    assert time.monotonic() - began <= DEAD_PROCESS_ENDS_OTHERS
    assert not any_running(pids)
    assert {rank: exit for rank, exit, *_ in json.loads(out.splitlines()[0])} == {0: -9, 1: -9}
