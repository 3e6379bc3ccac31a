import json
import sys
from pathlib import Path

import pytest

from bitstep.errors import RunError, UsageError
from bitstep.investigate.drill import drill

HERE = Path(__file__).parent
PROGRAM = (sys.executable, str(HERE / "repeating_program.py"))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")


def outcomes(drilled):
    return {line["number"]: (line["outcome"], line["why"]) for line in drilled.lines}


def test_the_words_of_a_warm_drill_are_a_script(tmp_path):
    with pytest.raises(UsageError, match=r"only python SCRIPT\.py can be forked from warm"):
        drill(["torchrun", "train.py"], tmp_path / "drill", faults=1, warm=True)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "other").touch()
    with pytest.raises(RunError, match="is not empty"):
        drill(PROGRAM, tmp_path, faults=1)


@pytest.mark.long
def test_every_fault_in_a_small_program_is_named(tmp_path):
    drilled = drill(PROGRAM, tmp_path / "drill", faults=6, warm=True)
    assert drilled.counts["exact"] == 6
    assert drilled.counts["unnamed"] == drilled.counts["missed"] == 0


@pytest.mark.long
def test_forked_and_fresh_runs_give_the_same_lines(tmp_path):
    warm = drill(PROGRAM, tmp_path / "warm", faults=2, warm=True, together=1)
    fresh = drill(PROGRAM, tmp_path / "fresh", faults=2, together=1)
    for lines in (warm.lines, fresh.lines):
        for line in lines:
            del line["seconds"]
    assert warm.lines == fresh.lines


@pytest.mark.long
def test_a_drill_that_was_killed_goes_on_where_it_stopped(tmp_path):
    whole = drill(PROGRAM, tmp_path, faults=4, warm=True)
    path = tmp_path / "faults.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[2][:30])
    heard = []
    again = drill(PROGRAM, tmp_path, faults=4, warm=True, said=heard.append)
    assert outcomes(again) == outcomes(whole)
    assert len(heard) == len(lines) - 2
    assert path.read_text().startswith("".join(lines[:2]))
    with pytest.raises(RunError, match="holds another drill"):
        drill(PROGRAM, tmp_path, faults=4, warm=True, seed=1)


@pytest.mark.long
def test_a_recorder_that_sees_no_operation_finds_and_does_not_name(tmp_path):
    blind = drill(PROGRAM, tmp_path, faults=4, level="step", warm=True)
    assert blind.counts["unnamed"] == 4
    assert blind.counts["exact"] == blind.counts["missed"] == 0


@pytest.mark.long
def test_a_program_that_does_not_repeat_itself_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"does not repeat itself: .*parameters.* of step 1 differ"):
        drill([*PROGRAM, "clock"], tmp_path, faults=1, warm=True)


@pytest.mark.long
def test_collectives_and_ranks_of_a_distributed_program_are_named(tmp_path):
    command = [sys.executable, str(HERE / "ddp_program.py"), "3"]
    drilled = drill(command, tmp_path, faults=8, warm=True)
    assert drilled.counts["missed"] == 0
    assert drilled.counts["exact"] == 8, [outcomes(drilled)]
    ranks = {json.loads(line)["flip"].get("rank", 0) for line in lines_of(tmp_path)}
    assert ranks == {0, 1}


def lines_of(folder):
    return (folder / "faults.jsonl").read_text().splitlines()
