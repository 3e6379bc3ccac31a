"""Programs that have never heard of us, recorded twice as they are: equal runs are found equal."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
import pairs


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", sorted(pairs.PROGRAMS))
def test_two_equal_runs_are_the_same_and_nothing_the_profiler_saw_is_missing(program):
    found = pairs.pair(program, 0)
    assert [arm["exit"] for arm in found["recorded"]] == [0, 0], found
    assert found["diff_exit"] == 0, found["diff"]
    if found["profiler"] is not None and program != "compiled":
        assert found["profiler"]["missed"] == 0, found["profiler"]
