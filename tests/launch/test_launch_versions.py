"""What git says about a program is asked by the launcher: in time, whole, and starting nothing."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from bitstep.contract.program import VERSION, handed_over
from bitstep.launch import versions
from bitstep.launch.versions import asked


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "train.py").write_text("one\n")
    (folder / ".gitignore").write_text("runs\n")
    try:
        git(folder, "init", "-q")
    except FileNotFoundError:
        pytest.skip("git is not installed")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "x")
    return folder


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)
    return done.stdout.decode().strip()


def uncommitted(folder: Path) -> str | None:
    return asked(folder, 60)["uncommitted"]


def test_what_is_committed_has_its_commit_alone(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert asked(checkout, 60) == {"commit": head, "uncommitted": None}
    assert asked(checkout / "src", 60) == {"commit": head, "uncommitted": None}


def test_a_change_a_staged_change_and_a_new_file_each_have_a_digest(checkout: Path) -> None:
    found = [uncommitted(checkout)]
    (checkout / "src" / "train.py").write_text("two\n")
    found.append(uncommitted(checkout))
    assert uncommitted(checkout / "src") == found[-1]
    git(checkout, "add", ".")
    assert uncommitted(checkout) == found[-1]
    (checkout / "new.py").write_text("new\n")
    found.append(uncommitted(checkout))
    (checkout / "new.py").write_text("newer\n")
    found.append(uncommitted(checkout))
    (checkout / "runs").mkdir()
    (checkout / "runs" / "a").write_text("ignored")
    assert uncommitted(checkout) == found[-1]
    assert len(set(found)) == 4


def test_no_repository_and_no_git_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(tmp_path, 60) == {}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert asked(tmp_path, 60) == {}


def test_a_git_that_does_not_answer_is_ended_in_time(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "git").write_text("#!/bin/sh\nsleep 600\n")
    (bin_ / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    began = time.monotonic()
    assert asked(checkout, 0.3) == {}
    assert time.monotonic() - began < 60  # and not 600


def test_more_changes_than_are_read_are_said_to_be_more(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "BYTES", 1000)
    (checkout / "large.bin").write_bytes(b"x" * 5000)
    assert str(uncommitted(checkout)).endswith("of the first 1000 bytes")


def test_programs_that_a_repository_names_are_not_started(checkout: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\ncat\n")
    trap.chmod(0o755)
    (checkout / ".gitattributes").write_text("*.py diff=trap\n")
    for name in ("core.fsmonitor", "diff.external", "diff.trap.textconv", "diff.trap.command"):
        git(checkout, "config", name, str(trap))
    (checkout / "src" / "train.py").write_text("two\n")
    assert str(uncommitted(checkout)).startswith("sha256:")
    assert not (tmp_path / "sprung").exists()


def test_the_index_of_the_repository_is_not_written(checkout: Path) -> None:
    os.utime(checkout / "src" / "train.py", (1, 1))  # git would refresh its index
    before = (checkout / ".git" / "index").read_bytes()
    assert uncommitted(checkout) is None
    assert (checkout / ".git" / "index").read_bytes() == before


def test_it_is_handed_over_of_the_folder_of_the_script(checkout: Path, tmp_path: Path) -> None:
    words = ["torchrun", "--nproc-per-node", "2", str(checkout / "src" / "train.py")]
    variable = versions.handed_over(words, 60)
    assert handed_over(variable) == asked(checkout, 60)
    assert versions.handed_over(["python", str(tmp_path / "gone.py")], 60).keys() == {VERSION}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"commit": 7, "more": "x"}', "{}"])
def test_what_is_handed_over_is_not_trusted(text: str) -> None:
    assert handed_over({VERSION: text}) == {}
    good = json.dumps({"commit": "abc", "uncommitted": None, "more": 1})
    assert handed_over({VERSION: good}) == {"commit": "abc", "uncommitted": None}
