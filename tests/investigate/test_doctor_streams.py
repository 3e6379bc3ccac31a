"""What a checkpoint would miss, by a real program that keeps every kind of state."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bitstep.investigate.doctor.checkpoint import Facts, absent, missed, moved_streams
from bitstep.investigate.doctor.effects import effects_of
from bitstep.investigate.doctor.runs import Runs, attempts, first_difference
from bitstep.investigate.doctor.saved import read_saved
from bitstep.investigate.doctor.streams import examine_streams

PROGRAM = Path(__file__).parents[1] / "programs" / "examined.py"
LOST = {
    "model": {"parameters"},
    "bias": {"the plain tensor attribute bias"},
    "moments": {"the optimizer's exp_avg", "the optimizer's exp_avg_sq"},
    "schedule": {"the schedule trainer.schedule"},
    "scaler": {"the loss scale of trainer.scaler"},
    "random": {"the generator torch"},
    "seen": {"the number trainer.seen"},
}
"""What must be named where the program leaves this out of its checkpoint."""


@pytest.fixture(scope="module")
def examined(tmp_path_factory):
    """The program's first run, what it saved, and the effect of each stream: two runs of it."""
    folder = tmp_path_factory.mktemp("examined")
    runs = Runs([sys.executable, str(PROGRAM), str(folder / "saved.pt")], folder)
    base = runs.base()
    process = attempts(base)[0][0]
    moved = moved_streams(process)
    return process, moved, read_saved(process["saves"], base.folder), effects_of(runs, base, moved)


def without(saved, name):
    kept = tuple(leaf for leaf in saved.leaves if leaf.path.partition(".")[0] != name)
    return replace(saved, leaves=kept)


def named(process, facts):
    found = missed(process, facts)
    return {f.what.partition(" would")[0] for f in found if f.severity == "missed by a checkpoint"}


def test_a_program_that_saves_all_of_its_state_misses_none(examined):
    process, moved, saved, effects = examined
    assert saved.step == 2
    assert [stream for stream in moved if absent(process, stream, saved) and effects[stream]] == []
    assert named(process, Facts(moved, saved, effects)) == set()


@pytest.mark.parametrize("stream", LOST)
def test_a_stream_that_is_left_out_of_the_checkpoint_is_named(examined, stream):
    process, moved, saved, effects = examined
    found = named(process, Facts(moved, without(saved, stream), effects))
    assert LOST[stream] <= found
    # The learning rate, and the step that every optimizer counts, go with their owners.
    assert found <= LOST[stream] | {"the optimizer's step", "the optimizer's setting lr"}


def test_a_loader_whose_position_is_saved_nowhere_is_missed(examined):
    process, moved, saved, effects = examined
    numbers = {"number 2", "number 8"}  # batches, and rows, by which it could be found again
    kept = tuple(leaf for leaf in saved.leaves if leaf.digest not in numbers)
    found = list(missed(process, Facts(moved, replace(saved, leaves=kept), effects)))
    loaders = [f for f in found if f.what.startswith("the position of the loader")]
    assert [f.severity for f in loaders] == ["missed by a checkpoint"]


def test_a_position_that_follows_from_another_number_is_a_note(examined):
    process, moved, saved, effects = examined
    found = list(missed(process, Facts(moved, without(saved, "data"), effects)))
    loaders = [f for f in found if f.what.startswith("the position of the loader")]
    assert [f.severity for f in loaders] == ["note"]
    assert "it may follow from that" in loaders[0].evidence


def test_what_a_step_reads_matters_and_what_it_overwrites_does_not(examined):
    _, moved, _, effects = examined
    matter = {stream for stream in moved if effects[stream]}
    assert {
        "parameters",
        "moments/exp_avg",
        "moments/exp_avg_sq",
        "attribute/bias",
        "schedule/trainer.schedule",
        "scaler/trainer.scaler",
        "random/torch",
        "counter/trainer.seen",
    } <= matter
    assert effects["gradients"] is False  # zero_grad comes before the next backward
    assert effects["counter/trainer.batches"] is False


def test_a_run_equals_itself_and_not_one_with_other_steps(examined):
    process, *_ = examined

    class Run:
        def __init__(self, *processes):
            self.processes = processes

    assert first_difference(Run(process), Run(process)) is None
    steps = [dict(process["steps"][0]), {**process["steps"][1], "parameters": "numbers 0"}]
    other = {**process, "steps": steps}
    assert first_difference(Run(process), Run(other)) == "the parameters of step 2"


@pytest.mark.long
@pytest.mark.parametrize("stream", [None, "bias", "seen"])
def test_the_whole_examination_names_what_was_left_out(tmp_path, stream):
    words = ["--leave-out", stream] if stream else []
    command = [sys.executable, str(PROGRAM), str(tmp_path / "saved.pt"), *words]
    found = examine_streams(command, tmp_path / "doctor")
    serious = {f.what.partition(" would")[0] for f in found if f.severity[:6] == "missed"}
    assert serious == LOST.get(stream, set())
    assert "4 runs" in found[-1].what
    assert str(tmp_path / "doctor") not in str(found[-1])


def test_a_command_that_trains_nothing_is_outside_of_view(tmp_path):
    (found,) = examine_streams([sys.executable, "-c", "import os"], tmp_path / "doctor")
    assert found.severity == "outside of view"
    assert "no process stepped an optimizer" in found.what
    assert os.listdir(tmp_path) == ["doctor"]


def test_a_finding_names_no_place_that_is_gone_when_it_is_read_and_says_the_last_words(tmp_path):
    command = [sys.executable, "-c", "print('first'); raise SystemExit('last')"]
    (found,) = examine_streams(command, tmp_path / "doctor")
    assert str(tmp_path) not in str(found)
    assert found.evidence == "last | first"
