"""The order that a person gives, and how its end is judged. No engine, no processes."""

from __future__ import annotations

import json
import os
import signal
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from bitstep.errors import LayoutError, RunError, UsageError
from bitstep.launch import pretrain as module
from bitstep.launch.environment import environment
from bitstep.launch.pretrain import Ended, Order, pretrain_command
from bitstep.launch.torchrun import Failure

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
KILLED = Failure(rank=1, exit=-signal.SIGKILL, message="", is_user_error=False)
ABORTED = Failure(rank=0, exit=-signal.SIGABRT, message="", is_user_error=False)


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name, value in environment(1).items():
        monkeypatch.setenv(name, value)
    for name in (*TORCHRUN, "BITSTEP_STOP_FILE", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def order(tmp_path):
    return Order(recipe="nano", run=tmp_path / "run", processes=2)


def workers(monkeypatch, act):
    """Put `act(order, stop)` in the place of the workers; it returns their failures."""
    calls = []

    def run_workers(words, processes, stop):
        calls.append((words, processes))
        return act(stop)

    monkeypatch.setattr(module, "run_workers", run_workers)
    return calls


def end(run: Path, attempt: int, **marker: object) -> None:
    folder = run / f"attempt-{attempt:03d}"
    folder.mkdir(parents=True)
    (folder / "end.json").write_text(json.dumps(marker))


def carry_out(order: Order) -> tuple[int, list[Ended]]:
    told: list[Ended] = []
    return pretrain_command(order, show=lambda progress: None, tell=told.append), told


def test_an_order_is_words_again():
    order = Order(
        recipe="nano",
        run=Path("runs/a"),
        processes=2,
        changes=("run.steps=4", "optimizer.lr=0.1"),
        resume=True,
        fault="left-fold",
        whole_sums=True,
        habits=("-q",),
    )
    assert order.words() == [
        "-m",
        "bitstep",
        "pretrain",
        "nano",
        "-o",
        "runs/a",
        "--processes",
        "2",
        "--set",
        "run.steps=4",
        "--set",
        "optimizer.lr=0.1",
        "--fault",
        "left-fold",
        "--sums",
        "whole",
        "--resume",
        "-q",
    ]


def test_workers_get_the_same_words(order, monkeypatch):
    def act(stop):
        end(order.run, 0, status="finished", step=9, root="00000000000000aa")
        return []

    calls = workers(monkeypatch, act)
    assert carry_out(order) == (0, [Ended("finished", 9, "00000000000000aa", 0)])
    assert calls == [(order.words(), 2)]


def test_a_finished_attempt_counts_even_if_a_worker_aborted_at_exit(order, monkeypatch):
    def act(stop):
        end(order.run, 0, status="finished", step=9, root="0" * 16)
        return [ABORTED]

    workers(monkeypatch, act)
    assert carry_out(order)[0] == 0


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)]
)
def test_a_stopped_attempt_has_the_status_of_the_signal(number, status, order, monkeypatch):
    def act(stop):
        signal.raise_signal(number)
        assert stop()
        end(order.run, 0, status="stopped", step=3, root="0" * 16)
        return [Failure(0, 75, "", False), Failure(1, 75, "", False)]

    workers(monkeypatch, act)
    assert carry_out(order) == (status, [Ended("stopped", 3, "0" * 16, status)])


def test_an_attempt_that_never_began_is_not_judged_by_the_one_before(order, monkeypatch):
    end(order.run, 0, status="finished", step=9, root="0" * 16)
    workers(monkeypatch, lambda stop: [KILLED])
    with pytest.raises(RunError, match="process 1 of 2 was killed by SIGKILL"):
        carry_out(order)


@pytest.mark.parametrize(
    ("failures", "message"),
    [
        ([KILLED], "process 1 of 2 was killed by SIGKILL; go on with --resume"),
        ([Failure(0, 2, "disk is full", True), KILLED], "disk is full"),
        (
            [Failure(0, 2, "TypeError: x; -v shows where", False)],
            "process 0 of 2 failed with status 2: TypeError: x; -v shows where",
        ),
        ([Failure(0, 3, "", False)], "process 0 of 2 failed with status 3: see its output"),
    ],
)
def test_a_failure_is_told_by_its_cause(failures, message, order, monkeypatch):
    workers(monkeypatch, lambda stop: failures)
    with pytest.raises(RunError) as caught:
        carry_out(order)
    assert str(caught.value) == message


def test_workers_that_say_nothing_at_all_are_an_error(order, monkeypatch):
    workers(monkeypatch, lambda stop: [])
    with pytest.raises(RunError, match="ended without an end marker"):
        carry_out(order)


def test_a_number_of_processes_that_the_fan_ins_refuse_starts_nothing(order, monkeypatch):
    calls = workers(monkeypatch, lambda stop: [])
    with pytest.raises(LayoutError, match=r"3 processes: the fan-ins \[2, 2, 2\] allow 1, 2, 4, 8"):
        carry_out(replace(order, processes=3))
    assert calls == []


def torchrun(monkeypatch, rank, world):
    """The environment of a worker of torchrun."""
    described = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}
    for name, value in described.items():
        monkeypatch.setenv(name, str(value))


def test_under_a_torchrun_of_another_size_it_refuses(order, monkeypatch):
    torchrun(monkeypatch, 0, 4)
    with pytest.raises(UsageError) as caught:
        carry_out(order)
    assert str(caught.value) == "--processes 2 under a torchrun of 4: leave --processes out"


REMEDY = "start with torchrun, which sets all of them, or unset RANK and WORLD_SIZE"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MASTER_ADDR", None, "MASTER_ADDR is not set, but RANK and WORLD_SIZE are"),
        ("MASTER_PORT", None, "MASTER_PORT is not set, but RANK and WORLD_SIZE are"),
        ("RANK", "x", "RANK is 'x' and no number"),
        ("WORLD_SIZE", "", "WORLD_SIZE is '' and no number"),
        ("MASTER_PORT", "-1", "MASTER_PORT is '-1' and no number"),
        ("RANK", "2", "RANK is 2 of 2"),
    ],
)
def test_half_of_a_torchrun_is_refused_by_name(name, value, message, order, engine, monkeypatch):
    given, _ = engine
    torchrun(monkeypatch, 0, 2)
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as caught:
        carry_out(order)
    assert str(caught.value) == f"{message}: {REMEDY}"
    assert given == {}


def test_the_end_of_another_launcher_is_not_reported_by_the_one_that_was_refused(
    order, monkeypatch
):
    def act(stop):
        end(order.run, 0, status="finished", step=9, root="0" * 16)
        return [Failure(0, 2, "run is taken by process 12", True)]

    workers(monkeypatch, act)
    with pytest.raises(RunError) as caught:
        carry_out(order)
    assert str(caught.value) == "run is taken by process 12"


@pytest.fixture
def engine(monkeypatch):
    """A loop and a worker that only note what they were given."""
    given: dict[str, object] = {}
    finished = types.SimpleNamespace(status="finished", step=5, root=0xAB)
    processes = types.SimpleNamespace(rank=0, world=1, barrier=lambda: given.update(waited=True))

    def pretrain(resolved, run, processes, **words):
        given.update(words, run=run, resolved=resolved, times=given.get("times", 0) + 1)
        return finished

    worker = types.SimpleNamespace(
        settle=lambda threads: given.update(settled=threads),
        join=lambda: processes,
        wait_for_all=lambda processes: processes.barrier(),
    )
    monkeypatch.setitem(sys.modules, "bitstep.train.loop", types.SimpleNamespace(pretrain=pretrain))
    monkeypatch.setitem(sys.modules, "bitstep.launch.worker", worker)
    return given, processes


def test_one_process_trains_here(order, engine):
    given, _ = engine
    changes = ("run.steps=40", "optimizer.lr=0.1")
    status, told = carry_out(replace(order, processes=1, changes=changes))
    assert (status, told) == (0, [Ended("finished", 5, "00000000000000ab", 0)])
    assert (given["settled"], given["resolved"].recipe.run.steps) == (1, 40)
    resolved = given["resolved"]
    assert (resolved.resumes, resolved.declared, given["fault"]) == (False, (), None)
    assert given["whole_sums"] is False
    assert "waited" not in given


def test_a_worker_of_torchrun_trains_here_and_waits_for_the_others(order, engine, monkeypatch):
    given, _ = engine
    calls = workers(monkeypatch, lambda stop: [])
    torchrun(monkeypatch, 0, 2)
    status, told = carry_out(order)
    assert (status, len(told), given["waited"]) == (0, 1, True)
    assert (given["times"], calls) == (1, []), "a worker trains once and starts nobody"


@pytest.mark.parametrize(("rank", "supervised"), [(1, False), (0, True)])
def test_only_one_process_tells_the_end(rank, supervised, order, engine, monkeypatch, tmp_path):
    _, processes = engine
    processes.rank = rank
    torchrun(monkeypatch, rank, 2)
    if supervised:
        monkeypatch.setenv("BITSTEP_STOP_FILE", str(tmp_path / "stop"))
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert carry_out(order) == (0, [])
    assert os.environ["RANK"] == str(rank)
