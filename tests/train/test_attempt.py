"""Attempts: how one opens in a run directory, what it refuses, and how it ends."""

import os
from dataclasses import replace

import pytest

from bitstep.contract.manifest import Manifest, append_attempt, read_manifest
from bitstep.errors import BitstepError, CheckpointError, ContractError, RunError
from bitstep.state.processes import Processes
from bitstep.train.attempt import (
    End,
    attempt_folder,
    end_attempt,
    locked,
    open_attempt,
)
from bitstep.train.resolve import CHANGES, SOURCE, is_free, resolve

ALONE = Processes(rank=0, world=1)
MANIFEST = Manifest({"recipe.run.seed": 7, "program.host": "a"})


def test_an_empty_or_missing_directory_is_free(tmp_path):
    assert is_free(tmp_path)
    assert is_free(tmp_path / "new")


def test_a_directory_that_holds_anything_is_taken(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for taken in (tmp_path, tmp_path / "notes.txt"):
        assert not is_free(taken)
        with (
            pytest.raises(RunError, match=r"is not empty: choose another directory with -o"),
            locked(taken, ALONE, resume=False),
        ):
            pass
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_an_attempt_left_that_died_before_its_manifest_is_no_run(tmp_path):
    (tmp_path / "lock").touch()
    assert is_free(tmp_path)


def test_a_path_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(RunError, match=r"Not a directory; correct that") as caught,
        locked(tmp_path / "file" / "run", ALONE, resume=False),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_two_attempts_cannot_hold_one_run(tmp_path):
    with (
        locked(tmp_path / "run", ALONE, resume=False),
        pytest.raises(BitstepError, match="another attempt is still running"),
        locked(tmp_path / "run", ALONE, resume=True),
    ):
        pass
    with locked(tmp_path / "run", ALONE, resume=True):
        pass


def test_a_first_attempt_begins_at_the_first_step(tmp_path):
    opening = open_attempt(tmp_path, MANIFEST, resume=False, processes=ALONE)
    assert (opening.attempt, opening.checkpoint, opening.skipped) == (0, None, ())
    assert attempt_folder(tmp_path, 0).is_dir()
    assert read_manifest(tmp_path)[0].parent is None


def test_a_resume_without_a_checkpoint_begins_again(tmp_path):
    append_attempt(tmp_path, MANIFEST, None)
    opening = open_attempt(tmp_path, MANIFEST, resume=True, processes=ALONE)
    assert (opening.attempt, opening.checkpoint) == (1, None)


def test_a_resume_is_refused_where_a_key_that_must_match_differs(tmp_path):
    append_attempt(tmp_path, MANIFEST, None)
    other = replace(MANIFEST, keys={**MANIFEST.keys, "recipe.run.seed": 8})
    with pytest.raises(BitstepError, match=r"recipe.run.seed was 7, is 8"):
        open_attempt(tmp_path, other, resume=True, processes=ALONE)
    assert not attempt_folder(tmp_path, 1).exists()
    assert len(read_manifest(tmp_path)) == 1


def test_a_resume_may_come_from_another_host_or_by_declaration(tmp_path):
    append_attempt(tmp_path, MANIFEST, None)
    moved = replace(MANIFEST, keys={**MANIFEST.keys, "program.host": "b"})
    assert open_attempt(tmp_path, moved, resume=True, processes=ALONE).attempt == 1
    declared = Manifest({**MANIFEST.keys, "recipe.run.seed": 8}, ("recipe.run.seed",))
    assert open_attempt(tmp_path, declared, resume=True, processes=ALONE).attempt == 2


def test_a_resume_is_refused_where_no_checkpoint_verifies(tmp_path):
    append_attempt(tmp_path, MANIFEST, None)
    for step in (4, 8):
        (tmp_path / "checkpoints" / f"step-0000000{step}").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"no checkpoint of .* verifies: .*08.*; .*04"):
        open_attempt(tmp_path, MANIFEST, resume=True, processes=ALONE)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_the_end_marker_says_how_where_and_with_which_root(tmp_path):
    attempt_folder(tmp_path, 0).mkdir()
    end_attempt(tmp_path, 0, End("finished", 12, 0xAB), ALONE)
    text = (attempt_folder(tmp_path, 0) / "end.json").read_text()
    assert text == '{"status": "finished", "step": 12, "root": "00000000000000ab"}\n'
    assert os.listdir(attempt_folder(tmp_path, 0)) == ["end.json"]


def recorded(run, recipe="nano", changes=()):
    from bitstep.train.recipe import flatten, load

    keys = {f"recipe.{k}": v for k, v in flatten(load(recipe, changes)).items()}
    run.mkdir()
    append_attempt(run, Manifest({**keys, SOURCE: recipe, CHANGES: list(changes)}), None)
    return run


def test_a_resume_keeps_the_changes_of_the_run(tmp_path):
    run = recorded(tmp_path / "run", changes=["run.seed=9"])
    resolved = resolve("nano", [], run, resume=True)
    assert resolved.recipe.run.seed == 9
    assert (resolved.changes, resolved.declared) == (("run.seed=9",), ())


def test_the_same_command_again_is_no_branch(tmp_path):
    run = recorded(tmp_path / "run", changes=["run.seed=9"])
    assert resolve("nano", ["run.seed=9"], run, resume=True).declared == ()


def test_another_value_on_resume_is_a_branch(tmp_path):
    run = recorded(tmp_path / "run", changes=["run.seed=9"])
    resolved = resolve("nano", ["run.seed=10", "optimizer.lr=0.5"], run, resume=True)
    assert resolved.declared == ("optimizer.lr", "run.seed")
    assert resolved.changes == ("run.seed=10", "optimizer.lr=0.5")


def test_another_recipe_on_resume_is_refused(tmp_path):
    run = recorded(tmp_path / "run")
    with pytest.raises(ContractError, match="is a run of recipe 'nano', not 'small'"):
        resolve("small", [], run, resume=True)


def test_resume_without_a_run_begins_one(tmp_path):
    for free in (tmp_path / "none", tmp_path / "empty"):
        assert not resolve("nano", ["run.seed=9"], free, resume=True).resumes
        free.mkdir(exist_ok=True)
    assert resolve("nano", [], recorded(tmp_path / "run"), resume=True).resumes


def test_a_directory_that_is_not_a_run_is_not_resumed(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ContractError):
        resolve("nano", [], tmp_path, resume=True)
