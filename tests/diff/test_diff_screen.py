"""What `bitstep diff` prints: one screen, one contract of JSON, one status."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from simulated import Life, first_state, record

from bitstep.cli import run as cli
from bitstep.diff import compare_runs
from bitstep.report.difference import LINES, WIDTH, difference_json, difference_text


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a", tmp_path / "b"


def fault(life: Life, rank: int, step: int, moment: str) -> None:
    if (rank, step, moment) == (1, 4, "loss"):
        life.noise = 99


def test_the_first_screen_says_what_where_since_when_how_sure_and_what_next(
    runs: tuple[Path, Path],
) -> None:
    record(runs[0], world=2)
    record(runs[1], world=2, fault=fault)
    text = difference_text(replace(compare_runs(*runs), notes=()))
    assert text.splitlines() == [
        "different: origin, step 4, rank 1",
        "  aten.mse_loss #0, phase forward gives other bits for equal inputs",
        "  Its input is equal, out.0 is not.",
        "where    step 4, rank 1, phase forward, microbatch 0, op aten.mse_loss #0, slot out.0",
        "bits     A 0327f4b4c78f2bc0 float32[4], B 9711ac0037f94066 float32[4]",
        "before   190 records equal; paired by place: both runs recorded the same sites in the "
        "same order",
        "since    loss from step 4 (rank 1: A 848, B 790); state root from step 4",
        "sure     certain: every input was hashed there",
        "spread   rank 0 at step 4, phase reduce through c10d.allreduce_ from rank 1",
    ]


def test_equal_runs_have_a_screen_that_says_what_was_compared(runs: tuple[Path, Path]) -> None:
    for run in runs:
        record(run, steps=2, level="step")
    text = difference_text(replace(compare_runs(*runs), notes=()))
    assert text.splitlines() == [
        "the same: 26 records are equal",
        "compared steps 0 to 2, rank 0, level step: 26 records equal",
    ]


def test_whatever_a_trace_holds_the_screen_is_one_and_its_words_are_escaped(
    runs: tuple[Path, Path],
) -> None:
    hostile = "\x1b[2J\nspoof " * 40

    def shout(life: Life, rank: int, step: int, moment: str) -> None:
        if (step, moment) == (2, "loss"):
            life.call("forward", hostile, [(hostile, 1)], hostile)

    def shout_otherwise(life: Life, rank: int, step: int, moment: str) -> None:
        if (step, moment) == (2, "loss"):
            life.noise = 5
            life.call("forward", hostile, [(hostile, 1)], hostile)

    record(runs[0], world=3, fault=shout)
    record(runs[1], world=3, fault=shout_otherwise)
    text = difference_text(compare_runs(*runs))
    assert len(text.splitlines()) <= LINES
    assert all(len(line) <= WIDTH for line in text.splitlines())
    assert "\x1b" not in text
    assert "\\x1b[2J" in text


def test_the_keys_of_the_json(runs: tuple[Path, Path]) -> None:
    record(runs[0], world=2)
    record(runs[1], world=2, fault=fault)
    found = json.loads(json.dumps(difference_json(compare_runs(*runs))))
    assert list(found) == [
        "format", "outcome", "status", "title", "runs", "manifest", "placed", "causes",
        "receivers", "metrics", "state", "covered", "notes", "damage", "reasons", "hints",
    ]  # fmt: skip
    assert (found["format"], found["outcome"], found["status"]) == (1, "different", 1)
    [cause] = found["causes"]
    assert list(cause) == [
        "kind", "where", "title", "because", "sure", "a", "b", "ranks", "equal_before", "pairing",
    ]  # fmt: skip
    assert cause["where"] == {
        "step": 4, "rank": 1, "phase": "forward", "microbatch": 0, "module": "",
        "op": "aten.mse_loss", "occurrence": 0, "slot": "out.0", "attempt_a": 0, "attempt_b": 0,
        "part": "bits", "pass": "primary",
    }  # fmt: skip
    assert list(cause["a"]) == ["digest", "dtype", "shape", "seq", "value"]
    assert found["receivers"] == [
        {"rank": 0, "step": 4, "phase": "reduce", "op": "c10d.allreduce_", "slot": "mutated.0",
         "source": [1]}
    ]  # fmt: skip
    assert list(found["covered"]) == ["ranks", "steps", "records", "level"]


def test_every_key_of_the_json_is_documented(runs: tuple[Path, Path]) -> None:
    record(runs[0])
    states = copy.deepcopy(record(runs[1], steps=3))
    states[0].bias = 0
    record(runs[1], steps=3, states=states, attempt=1, fault=fault)
    page = (Path(__file__).parents[2] / "docs" / "diff.md").read_text()

    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value).union(*map(keys, value.values()))
        return set().union(*map(keys, value)) if isinstance(value, list) else set()

    found = json.loads(json.dumps(difference_json(compare_runs(*runs))))
    assert [key for key in sorted(keys(found)) if f"`{key}`" not in page] == []


def test_status_and_streams_of_the_command(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    record(runs[0], world=2)
    record(runs[1], world=2, fault=fault)
    words = [str(run) for run in runs]
    assert cli(["diff", words[0], words[0]]) == 0
    assert capsys.readouterr().out.startswith("the same: ")
    assert cli(["diff", *words]) == 1
    assert capsys.readouterr().out.startswith("different: origin, step 4, rank 1\n")
    assert cli(["diff", *words, "--all-ranks"]) == 1
    assert "rank 0: step 4, phase reduce, c10d.allreduce_ mutated.0 from rank 1" in (
        capsys.readouterr().out
    )
    assert cli(["diff", *words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["status"] == 1
    assert cli(["diff", words[0], words[1] + "x"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1


def test_strict_takes_a_gap_for_could_not_tell(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def gap(life: Life, rank: int, step: int, moment: str) -> None:
        if (step, moment) == (2, "end"):
            life.row("optimizer", "gap", 0, op="the disk was full", flags=16)

    for run in runs:
        record(run, fault=gap)
    words = [str(run) for run in runs]
    assert cli(["diff", *words]) == 0
    assert "A, rank 0, step 2: gap: the disk was full" in capsys.readouterr().out
    assert cli(["diff", *words, "--strict"]) == 2


def test_it_needs_no_torch(runs: tuple[Path, Path]) -> None:
    for run in runs:
        record(run, steps=1, states=[first_state()])
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from bitstep.cli import run\n"
        f"sys.exit(run(['diff', {str(runs[0])!r}, {str(runs[1])!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
