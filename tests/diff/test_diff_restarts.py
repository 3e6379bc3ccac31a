"""A run that was stopped and resumed aligns with one that was not; what it lost is named."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from simulated import NAMES, Life, State, first_state, record

from bitstep.diff import Kind, compare_runs
from bitstep.records import Outcome


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a", tmp_path / "b"


def interrupted(run: Path, change: object = None, **options: object) -> None:
    """Three steps, then three more in another attempt, of a state that `change` may spoil."""
    states = record(run, steps=3, **options)  # type: ignore[arg-type]
    states = copy.deepcopy(states)
    if change:
        change(states[0])  # type: ignore[operator]
    record(run, steps=3, states=states, attempt=1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", ["step", "phase", "op"])
def test_an_interrupted_run_is_placed_and_the_same(runs: tuple[Path, Path], level: str) -> None:
    record(runs[0], level=level)
    interrupted(runs[1], level=level)
    found = compare_runs(*runs)
    assert (found.outcome, found.reasons) == (Outcome.SAME, ())
    [placed] = found.placed
    assert (placed.run, placed.attempt, placed.step, placed.known) == ("b", 1, 3, True)
    assert placed.how == (
        "by its parameters, optimizer state and buffers, which are those at the end of its own "
        "step 3"
    )


def test_both_interrupted_at_other_steps(runs: tuple[Path, Path]) -> None:
    interrupted(runs[0])
    states = copy.deepcopy(record(runs[1], steps=2))
    record(runs[1], steps=4, states=states, attempt=1)
    found = compare_runs(*runs)
    assert found.outcome is Outcome.SAME
    assert [(one.run, one.step) for one in found.placed] == [("a", 3), ("b", 2)]


def test_both_interrupted_at_the_same_step(runs: tuple[Path, Path]) -> None:
    for run in runs:
        interrupted(run)
    assert compare_runs(*runs).outcome is Outcome.SAME


def test_a_resumed_half_alone_is_placed_in_the_other_run(runs: tuple[Path, Path]) -> None:
    states = copy.deepcopy(record(runs[0], steps=3))
    record(runs[0], steps=3, states=copy.deepcopy(states), attempt=1)
    record(runs[1], steps=3, states=states)
    found = compare_runs(*runs)
    assert found.outcome is Outcome.SAME
    assert ("b", 0, 3) in [(one.run, one.attempt, one.step) for one in found.placed]
    assert found.covered.steps == (3, 6)


def test_a_tensor_that_the_checkpoint_lacks(runs: tuple[Path, Path]) -> None:
    def train(life: object, rank: int, step: int, moment: str) -> None:
        if moment == "end":
            current[0].bias += step

    def forget(state: State) -> None:
        state.bias = 5
        current[0] = state

    current = [first_state()]
    record(runs[0], states=current, fault=train)
    current = [first_state()]
    record(runs[1], steps=3, states=current, fault=train)
    forgotten = copy.deepcopy(current[0])
    forget(forgotten)
    record(runs[1], steps=3, states=[forgotten], attempt=1, fault=train)
    found = compare_runs(*runs)
    cause = found.causes[0]
    assert (cause.kind, cause.where.step, cause.where.module) == (Kind.INITIAL, 3, "Net.bias")
    assert cause.title == "attempt 1 of B began step 4 without the right Net.bias"
    assert cause.because[0] == (
        "Net.bias: a plain tensor attribute: state_dict() does not hold it; it has the value from "
        "before the first step again."
    )
    assert found.placed[0].how.startswith("by its parameters and optimizer state")


def test_moments_on_other_parameters(runs: tuple[Path, Path]) -> None:
    def exchange(state: State) -> None:
        one, two = NAMES
        state.moments = {one: state.moments[two], two: state.moments[one]}

    record(runs[0])
    interrupted(runs[1], exchange)
    found = compare_runs(*runs)
    cause = found.causes[0]
    assert (cause.kind, cause.where.step, cause.where.slot) == (Kind.INITIAL, 3, "state.exp_avg")
    assert cause.title == "attempt 1 of B began step 4 with optimizer state on other parameters"
    assert cause.because[0] == (
        "exp_avg: Net.0.weight has that of Net.1.weight; Net.1.weight has that of Net.0.weight."
    )
    assert found.placed[0].how.startswith("by its parameters alone")


def test_optimizer_state_that_is_lost_is_seen_by_its_root_at_level_step(
    runs: tuple[Path, Path],
) -> None:
    def lose(state: State) -> None:
        state.moments = dict.fromkeys(state.moments, 0)

    record(runs[0], level="step")
    interrupted(runs[1], lose, level="step")
    cause = compare_runs(*runs).causes[0]
    assert cause.kind is Kind.INITIAL
    assert cause.title == "attempt 1 of B began step 4 without the right optimizer state"


def test_the_next_recording_is_told_in_steps_of_the_attempt(runs: tuple[Path, Path]) -> None:
    def fault(life: Life, rank: int, step: int, moment: str) -> None:
        if (step, moment) == (2, "loss"):
            life.noise = 99

    record(runs[0], level="step")
    states = copy.deepcopy(record(runs[1], steps=3, level="step"))
    record(runs[1], steps=3, states=states, attempt=1, level="step", fault=fault)
    found = compare_runs(*runs)
    assert found.causes[0].where.step == 5
    assert found.hints[-1] == (
        "record both again: bitstep record --level op --steps 5:6 -o runs/NAME -- COMMAND "
        "(step 2 in attempt 1 of B)"
    )


def test_a_state_that_neither_run_had_is_said_so(runs: tuple[Path, Path]) -> None:
    def spoil(state: State) -> None:
        state.params[NAMES[0]] ^= 1
        state.moments[NAMES[0]] ^= 1

    record(runs[0])
    interrupted(runs[1], spoil)
    found = compare_runs(*runs)
    assert not found.placed[0].known
    assert found.placed[0].step == 3
    cause = found.causes[0]
    assert (cause.kind, cause.where.module) == (Kind.INITIAL, NAMES[0])


def test_a_draw_after_the_state_was_restored(runs: tuple[Path, Path]) -> None:
    """The generator is put back, then an iterator draws from it."""
    record(runs[0])
    states = copy.deepcopy(record(runs[1], steps=3))

    def draw(life: object, rank: int, step: int, moment: str) -> None:
        if (step, moment) == (0, "start"):
            life.call("data", "aten.random_", draw=states[0], line="resume.py:5", out="mutated.0")  # type: ignore[attr-defined]

    record(runs[1], steps=3, states=states, attempt=1, fault=draw)
    cause = compare_runs(*runs).causes[0]
    assert (cause.kind, cause.where.step) == (Kind.RANDOM, 4)
    assert cause.because[0] == (
        "B drew once more: aten.random_ at resume.py:5 (step 3, phase data)."
    )


def test_data_of_one_rank_after_a_restart(runs: tuple[Path, Path]) -> None:
    record(runs[0], world=2)
    states = copy.deepcopy(record(runs[1], steps=3, world=2))
    states[1].position = 0
    record(runs[1], steps=3, world=2, states=states, attempt=1)
    found = compare_runs(*runs)
    assert [(c.kind, c.ranks, c.where.step) for c in found.causes] == [(Kind.DATA, (1,), 4)]
    assert [(one.rank, one.source) for one in found.receivers] == [(0, (1,))]


def test_steps_that_two_attempts_took_are_all_compared(runs: tuple[Path, Path]) -> None:
    """Killed at step 5, resumed from a checkpoint of step 3."""
    record(runs[0])
    states = [first_state()]
    record(runs[1], steps=3, states=states)
    saved = copy.deepcopy(states)
    for path in (runs[1] / "attempt-000").iterdir():
        path.unlink()
    record(runs[1], steps=5, close=False)
    record(runs[1], steps=3, states=saved, attempt=1)
    found = compare_runs(*runs)
    assert (found.outcome, found.causes) == (Outcome.SAME, ())
    assert found.placed[0].step == 3
    assert "no end marker" in found.damage[0]


def test_steps_that_a_killed_run_did_not_take_again_make_it_unverified(
    runs: tuple[Path, Path],
) -> None:
    record(runs[0])
    record(runs[1], steps=5, close=False)
    assert compare_runs(*runs).outcome is Outcome.UNVERIFIED


def test_a_run_that_goes_on_longer_cannot_be_told(runs: tuple[Path, Path]) -> None:
    record(runs[0], steps=6)
    record(runs[1], steps=4)
    found = compare_runs(*runs)
    assert (found.outcome, found.reasons) == (
        Outcome.UNVERIFIED, ("only A has steps 5 to 6",),
    )  # fmt: skip


def test_a_resume_without_the_right_parameters_is_placed_by_its_moments(
    runs: tuple[Path, Path],
) -> None:
    """What a checkpoint does not restore is a finding, and no other initial state."""
    record(runs[0])

    def spoil(state: State) -> None:
        state.params[NAMES[0]] ^= 1

    states = copy.deepcopy(record(runs[1], steps=3))
    spoil(states[0])
    record(runs[1].with_name("c"), steps=3, states=states)
    found = compare_runs(runs[0], runs[1].with_name("c"))
    [placed] = found.placed
    assert (placed.step, placed.known) == (3, True)
    assert placed.how.startswith("by its optimizer state alone")
    [cause] = found.causes
    assert (cause.kind, cause.where.step, cause.where.module) == (Kind.INITIAL, 3, NAMES[0])
