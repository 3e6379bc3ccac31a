"""Streams that are gone or were never there: real pipes, real processes, no engine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BITSTEP = [sys.executable, "-m", "bitstep"]

TRAIN = """
import os, signal, sys, types
from pathlib import Path

folder = Path(sys.argv.pop(1))
stops = sys.argv.pop(1) == "stopped"

def pretrain(resolved, run, processes, *, report, should_stop, **words):
    for step in (1, 2, 3):
        if stops and step == 1:
            signal.raise_signal(signal.SIGTERM)
        metrics = {"loss": 1.0, "grad_norm": 1.0, "tokens": 8.0}
        result = types.SimpleNamespace(step=step, metrics=metrics, roots={"state": 1})
        report(types.SimpleNamespace(
            result=result, steps=3, seconds=0.1, evaluation=1.0, saved=None))
    with (folder / "checkpoint").open("w") as file:
        (folder / "descriptor").write_text(str(file.fileno()))
        child = os.system("echo from a child && echo from a child >&2")
        (folder / "child").write_text(str(child))
    status = "stopped" if should_stop() else "finished"
    return types.SimpleNamespace(status=status, step=3, root=1)

processes = types.SimpleNamespace(rank=0, world=1)
worker = types.SimpleNamespace(settle=lambda threads: None, join=lambda: processes)
sys.modules["bitstep.train.loop"] = types.SimpleNamespace(pretrain=pretrain)
sys.modules["bitstep.launch.worker"] = worker
from bitstep.cli import main
main()
"""


@pytest.fixture
def gone():
    """The end for writing of a pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


# Without buffers the interpreter has nothing to complain about at its end.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}

WORKER = {"RANK": "0", "WORLD_SIZE": "1"}


def run(words, **streams):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": BUFFERED, **streams}
    return subprocess.run(words, text=True, timeout=60, **streams)


def train(folder, ends, redirection="", **streams):
    words = [sys.executable, "-c", TRAIN, str(folder), ends, "pretrain", "nano"]
    words += ["-o", str(folder / "run")]
    return run(["sh", "-c", f'exec "$@" {redirection}', "sh", *words], **streams)


@pytest.mark.parametrize("words", [["recipes"], ["recipes", "--json"], ["--help"], ["--version"]])
def test_a_result_that_nobody_reads_is_no_error(words, gone):
    done = run([*BITSTEP, *words], stdout=gone)
    assert (done.stderr, done.returncode) == ("", 0)


def test_help_that_nobody_reads_is_no_error_of_a_worker(gone):
    done = run([*BITSTEP, "--help"], stdout=gone, env={**BUFFERED, **WORKER})
    assert (done.stderr, done.returncode) == ("", 0)


def test_an_error_that_nobody_reads_keeps_its_status(gone):
    done = run([*BITSTEP, "-v", "log", "nowhere"], stderr=gone)
    assert (done.stdout, done.returncode) == ("", 2)


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("words", "status"), [("recipes", 0), ("log nowhere", 2)])
def test_closed_streams_change_no_status(words, status, redirection):
    done = run(f"{sys.executable} -m bitstep {words} {redirection}", shell=True)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "worker"),
    [("recipes", {}), ("recipes", WORKER), ("--help", WORKER)],
)
def test_a_result_that_the_disk_has_no_room_for_is_an_error(words, worker):
    with open("/dev/full", "w") as full:
        done = run([*BITSTEP, words], stdout=full, env={**BUFFERED, **worker})
    assert (done.stderr.count("\n"), done.returncode) == (1, 2)
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize(("ends", "status"), [("finished", 0), ("stopped", 75)])
def test_a_training_goes_on_when_both_pipes_are_gone(ends, status, tmp_path, gone):
    done = train(tmp_path, ends, stdout=gone, stderr=gone)
    assert done.returncode == status
    assert (tmp_path / "descriptor").exists()


def test_a_training_goes_on_when_stderr_alone_is_gone(tmp_path, gone):
    done = train(tmp_path, "finished", stderr=gone)
    assert done.returncode == 0
    assert done.stdout.startswith("from a child\nfinished at step 3, state root 00000000")


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("ends", "status"), [("finished", 0), ("stopped", 75)])
def test_a_checkpoint_never_takes_the_place_of_a_closed_stream(ends, status, redirection, tmp_path):
    done = train(tmp_path, ends, redirection)
    assert done.returncode == status, done.stderr
    assert int((tmp_path / "descriptor").read_text()) > 2
    assert (tmp_path / "child").read_text() == "0", "what we start can write as well"
    assert (tmp_path / "checkpoint").read_text() == ""
