"""The commands in the documents, typed as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_HERE = ("make ", "pip ", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=")
"""The first two install; the third is for a cluster: tests/launch/test_launch_torchrun.py."""


def commands(document):
    inside, found = False, []
    for line in (ROOT / document).read_text().splitlines():
        if line.startswith("```"):
            inside = line == "```sh"
        elif inside and line and not line.startswith(NOT_HERE):
            found.append(line)
    return found


def status_of(command):
    """What the comment behind a command says, or 0."""
    said = re.search(r"exit status (\d)", command)
    return int(said[1]) if said else 0


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/tour.md",
        "docs/record.md",
        "docs/megatron.md",
        "docs/doctor.md",
        "docs/catalog.md",
    ],
)
def test_every_command_does_what_it_says(document, tmp_path):
    for folder in ("docs", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    # In place of Megatron's own: the small program, with Megatron's flags.
    (tmp_path / "pretrain_gpt.py").symlink_to(ROOT / "tests/megatron/pretrain_gpt.py")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = ""
    for command in commands(document):
        if command.startswith("LAUNCH="):
            settings = f"{command}; "
            continue
        expected = status_of(command)
        done = subprocess.run(
            settings + command, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path},
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == expected, f"{command}\n{done.stdout}\n{done.stderr}"


def test_the_documents_have_commands_to_run():
    assert "bitstep prove nano --steps 12 --processes 1,2 -o runs/proof" in commands("docs/tour.md")
    assert "bitstep diff rec/a rec/b    # exit status 1" in commands("README.md")
    assert len(commands("README.md")) >= 5
