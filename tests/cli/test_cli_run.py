"""A real run on two processes by the command, and the verbs that read what it left."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bitstep.cli import run

ROOT = Path(__file__).parents[2]
STEPS = 3
WORDS = ["--steps", str(STEPS), "--set", "schedule.warmup=1", "--set", f"run.save_every={STEPS}"]

READ_WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numba", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from bitstep.cli import run
directory = sys.argv[1]
for words in (
    ["log", directory],
    ["manifest", "show", directory],
    ["checkpoint", "verify", f"{directory}/checkpoints/step-00000003"],
    ["checkpoint", "show", f"{directory}/checkpoints/step-00000003"],
):
    assert run(words) == 0, words
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(run directory, the finished process)"""
    directory = tmp_path_factory.mktemp("cli") / "run"
    words = ["pretrain", "nano", "-o", str(directory), "--processes", "2", *WORDS]
    done = subprocess.run(
        [sys.executable, "-m", "bitstep", *words], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return directory, done


def test_the_result_is_on_stdout_and_the_steps_are_on_stderr(trained):
    directory, done = trained
    end = json.loads((directory / "attempt-000" / "end.json").read_text())
    assert done.stdout == (f"finished at step {STEPS}, state root {end['root']}, {directory}\n")
    last = done.stderr.splitlines()[-1]
    assert re.match(r"step 3/3  loss \d+\.\d{4}  norm \d+\.\d{3}  \d+ tokens/s  0:00:00 left", last)
    assert f"root {end['root'][:8]}" in last


def test_log_prints_every_step(trained, capsys):
    directory, _ = trained
    assert run(["log", str(directory)]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines() if line[:1].isdigit()] == list("3210")
    assert err == ""


def test_log_json_is_one_object_a_line_with_the_same_roots(trained, capsys):
    directory, done = trained
    assert run(["log", str(directory), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert f"state root {rows[-1]['root']}," in done.stdout


def test_a_manifest_shows_and_differs_from_itself_in_nothing(trained, capsys):
    directory, _ = trained
    assert run(["manifest", "show", str(directory)]) == 0
    assert "recipe.run.steps = 3" in capsys.readouterr().out
    assert run(["manifest", "diff", str(directory), str(directory)]) == 0
    assert capsys.readouterr().out == "no key differs\n"


def test_manifests_that_must_match_and_do_not_are_status_1(trained, capsys, tmp_path):
    directory, _ = trained
    text = (directory / "manifest.json").read_text()
    changed = text.replace('"recipe.run.seed": 7', '"recipe.run.seed": 8')
    assert changed != text
    (tmp_path / "manifest.json").write_text(changed)
    assert run(["manifest", "diff", str(directory), str(tmp_path)]) == 1
    assert "  recipe.run.seed: 7 in A, 8 in B (must match: " in capsys.readouterr().out


def test_a_checkpoint_verifies_with_the_root_of_its_step(trained, capsys):
    directory, done = trained
    checkpoint = directory / "checkpoints" / "step-00000003"
    assert run(["checkpoint", "verify", str(checkpoint), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["step"] == 3
    assert f"state root {report['root']}," in done.stdout
    assert run(["checkpoint", "show", str(checkpoint), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert "parameters/embedding.weight" in [row["tensor"] for row in rows]


def test_a_flipped_bit_is_one_line_and_status_2(trained, capsys, tmp_path):
    directory, _ = trained
    checkpoint = tmp_path / "step-00000003"
    shutil.copytree(directory / "checkpoints" / "step-00000003", checkpoint)
    file = checkpoint / "rank-00001.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert run(["checkpoint", "verify", str(checkpoint)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "rank-00001.safetensors" in err


def test_reading_needs_no_torch(trained):
    directory, _ = trained
    done = subprocess.run(
        [sys.executable, "-c", READ_WITHOUT_TORCH, str(directory)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert (done.stderr, done.returncode) == ("", 0)
