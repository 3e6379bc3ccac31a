"""The inertness check: what it concludes, and one whole run of it."""

import sys
from pathlib import Path

import pytest

from bitstep.errors import RunError
from bitstep.investigate.inert import check_inert, judge
from bitstep.observe.options import RecordOptions
from bitstep.records import Outcome

PROGRAMS = Path(__file__).parents[1] / "programs"


def arms(bare, again, recorded):
    return [("bare", {0: bare}), ("bare again", {0: again}), ("recorded", {0: recorded})]


def test_equal_states_in_all_arms_are_inert():
    found = judge(arms(["a", "b"], ["a", "b"], ["a", "b"]))
    assert (found.outcome, found.reasons) == (
        Outcome.SAME,
        ("2 states on 1 ranks are equal in 3 arms",),
    )


def test_a_recorded_arm_that_differs_is_named_with_its_state():
    found = judge(arms(["a", "b"], ["a", "b"], ["a", "c"]))
    assert found.outcome is Outcome.DIFFERENT
    assert found.reasons == ("recorded differs from bare on rank 0 from state 2: b and c",)


def test_a_program_that_varies_by_itself_is_unverified_even_if_a_recorded_arm_agrees():
    found = judge(arms(["a", "b"], ["a", "x"], ["a", "b"]))
    assert (found.outcome, found.title) == (Outcome.UNVERIFIED, "unverified")


def test_an_arm_that_stepped_less_often_is_not_inert():
    assert judge(arms(["a", "b"], ["a", "b"], ["a"])).outcome is Outcome.DIFFERENT


def test_a_rank_that_is_missing_is_not_inert():
    found = judge([("bare", {0: ["a"], 1: ["a"]}), ("again", {0: ["a"], 1: ["a"]}),
                   ("recorded", {0: ["a"]})])  # fmt: skip
    assert found.reasons == ("recorded differs from bare in its ranks: [0, 1] and [0]",)


def test_a_program_that_never_steps_is_unverified():
    assert judge([("bare", {}), ("again", {}), ("recorded", {})]).outcome is Outcome.UNVERIFIED


def test_a_directory_that_holds_something_is_refused(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(RunError, match="is not empty"):
        check_inert(RecordOptions(tmp_path), ["true"])


@pytest.mark.long
def test_a_plain_loop_is_inert_and_what_recording_added_is_counted(tmp_path):
    command = [sys.executable, str(PROGRAMS / "plain.py"), "2"]
    found = check_inert(RecordOptions(tmp_path / "check"), command)
    assert found.verdict.outcome is Outcome.SAME
    assert [arm.name for arm in found.arms] == [
        "bare",
        "bare again",
        "recorded",
        "recorded, busier",
    ]
    assert found.arms[0].rows == 0 < found.arms[2].rows == found.arms[3].rows
    assert found.arms[2].hashed <= found.arms[3].hashed


@pytest.mark.long
def test_a_program_that_draws_its_seed_from_the_clock_is_unverified(tmp_path):
    program = tmp_path / "varies.py"
    program.write_text(
        "import time, torch\n"
        "torch.manual_seed(time.time_ns())\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.ones(1, 2)).sum().backward()\n"
        "optimizer.step()\n"
    )
    found = check_inert(RecordOptions(tmp_path / "check"), [sys.executable, str(program)])
    assert found.verdict.outcome is Outcome.UNVERIFIED
