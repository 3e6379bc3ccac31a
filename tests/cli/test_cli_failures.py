"""From an exception to one line and a status."""

from __future__ import annotations

import errno
import json
import logging

import click
import pytest

from bitstep.cli import bitstep, run
from bitstep.cli.failures import describe
from bitstep.errors import CheckpointError


@pytest.fixture
def broken(monkeypatch):
    """A verb that raises what it is told to."""

    def install(error: BaseException) -> None:
        @click.command()
        def verb() -> None:
            raise error

        monkeypatch.setitem(bitstep.commands, "broken", verb)

    return install


def test_a_bitstep_error_is_its_message(broken, capsys):
    broken(CheckpointError("step-3: index.json: 2 bytes short; take an older one"))
    assert run(["broken"]) == 2
    assert capsys.readouterr() == (
        "",
        "bitstep: step-3: index.json: 2 bytes short; take an older one\n",
    )


def test_a_message_of_several_lines_becomes_one(broken, capsys):
    broken(CheckpointError("a\n  b"))
    run(["broken"])
    assert capsys.readouterr().err == "bitstep: a b\n"


def test_a_message_moves_no_cursor(broken, capsys):
    broken(CheckpointError("a\x1b[2J"))
    run(["broken"])
    assert capsys.readouterr().err == "bitstep: a\\x1b[2J\n"


def test_a_mistake_of_ours_says_so_and_how_to_see_more(broken, capsys):
    broken(ZeroDivisionError("division by zero"))
    assert run(["broken"]) == 2
    assert capsys.readouterr().err == (
        "bitstep: ZeroDivisionError: division by zero; this is a mistake in bitstep, "
        "-v shows where\n"
    )


def test_v_shows_the_traceback(broken, capsys):
    broken(ZeroDivisionError("division by zero"))
    assert run(["-v", "broken"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("bitstep: ZeroDivisionError")
    assert "Traceback (most recent call last):" in err
    assert __file__ in err


@pytest.mark.parametrize(
    ("name", "extra"),
    [("torch", "torch"), ("numba", "torch"), ("xxhash", "bench")],
)
def test_a_missing_package_is_answered_with_its_pip_line(name, extra, broken, capsys):
    broken(ModuleNotFoundError(f"No module named '{name}'", name=name))
    assert run(["broken"]) == 2
    assert capsys.readouterr().err == (
        f"bitstep: {name} is not installed: pip install 'bitstep[{extra}]'\n"
    )


def test_a_full_disk_names_the_file(broken, capsys):
    broken(OSError(errno.ENOSPC, "No space left on device", "runs/a/end.json"))
    assert run(["broken"]) == 2
    assert capsys.readouterr().err == (
        "bitstep: runs/a/end.json: No space left on device; make room, then add --resume\n"
    )


def test_another_system_error_names_the_file(broken, capsys):
    broken(PermissionError(errno.EACCES, "Permission denied", "runs"))
    assert run(["broken"]) == 2
    assert capsys.readouterr().err == "bitstep: runs: Permission denied\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_ctrl_c_is_130(error, broken, capsys):
    broken(error)
    assert run(["broken"]) == 130
    assert capsys.readouterr().err == "bitstep: interrupted\n"


def test_our_own_mistake_is_not_the_users():
    assert describe(AssertionError("shape"))[1] is False
    assert describe(CheckpointError("damaged"))[1] is True


def test_a_worker_of_our_launcher_tells_the_launcher_alone(broken, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("BITSTEP_STOP_FILE", str(tmp_path / "stop"))
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    broken(CheckpointError("shard 3 is damaged"))
    assert run(["broken"]) == 2
    assert capsys.readouterr() == ("", "")
    said = json.loads((tmp_path / "error.json").read_text())["message"]
    assert said["message"] == "shard 3 is damaged"
    assert said["extraInfo"]["is_user_error"] is True


def test_a_worker_of_another_torchrun_tells_both(broken, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    broken(CheckpointError("shard 3 is damaged"))
    assert run(["broken"]) == 2
    assert capsys.readouterr().err == "bitstep: shard 3 is damaged\n"
    assert (tmp_path / "error.json").exists()


def test_quiet_still_tells_errors(broken, capsys):
    broken(CheckpointError("damaged"))
    run(["-q", "broken"])
    assert capsys.readouterr().err == "bitstep: damaged\n"
    assert not logging.getLogger("bitstep").isEnabledFor(logging.INFO)
