"""What a program saved is read back without running code, and recognised by its bits."""

import os

import numpy as np
import pytest
import torch

from bitstep.investigate.doctor.engine import Pretrained, recipe_of
from bitstep.investigate.doctor.saved import Saved, read_saved
from bitstep.observe.examine.leaves import Leaf, flatten, leaf_of


class RunsCode:
    def __reduce__(self):
        return os.system, ("touch ran",)


def event(path, state, how="torch.save"):
    return {
        "how": how,
        "where": "train.py:9",
        "step": 2,
        "path": str(path),
        "copy": path.name,
        "leaves": [list(leaf) for leaf in flatten(state)],
    }


def test_a_file_is_read_back_and_holds_what_was_saved(tmp_path):
    state = {"w": torch.tensor([1.0, 2.0]), "rng": torch.get_rng_state(), "step": 2}
    torch.save(state, tmp_path / "a.pt")
    given = {**event(tmp_path / "a.pt", {}), "leaves": []}
    saved = read_saved([given], tmp_path)
    assert {leaf.path for leaf in saved.leaves} == {"w", "rng", "step"}
    assert saved.has(leaf_of("Net.weight", torch.tensor([1.0, 2.0])))
    assert not saved.has(leaf_of("Net.weight", torch.tensor([1.0, -2.0])))
    assert saved.needs_pickle == ()


def test_the_state_of_numpys_generator_needs_no_pickle(tmp_path):
    torch.save({"numpy": np.random.get_state()}, tmp_path / "a.pt")
    saved = read_saved([event(tmp_path / "a.pt", {})], tmp_path)
    assert saved.needs_pickle == ()
    assert any(leaf.digest.startswith("numbers ") for leaf in saved.leaves)


def test_a_file_that_runs_code_is_not_opened_and_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = {"step": 2, "other": RunsCode()}
    torch.save(state, tmp_path / "a.pt")
    saved = read_saved([event(tmp_path / "a.pt", state)], tmp_path)
    assert not (tmp_path / "ran").exists()
    assert len(saved.needs_pickle) == 1
    assert "\n" not in saved.needs_pickle[0]
    assert [leaf.path for leaf in saved.leaves] == ["step"]  # of what was handed over


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02}q\x00."])
def test_a_damaged_file_is_no_error(tmp_path, content):
    (tmp_path / "a.pt").write_bytes(content)
    state = {"step": 2}
    saved = read_saved([event(tmp_path / "a.pt", state)], tmp_path)
    assert [leaf.path for leaf in saved.leaves] in (["step"], [])


def test_a_copy_outside_of_the_folder_is_not_followed(tmp_path):
    torch.save({"secret": 5}, tmp_path / "other.pt")
    folder = tmp_path / "run"
    folder.mkdir()
    given = {**event(tmp_path / "other.pt", {"step": 2}), "copy": "../other.pt"}
    saved = read_saved([given], folder)
    assert [leaf.path for leaf in saved.leaves] == ["step"]


def test_a_common_value_needs_its_own_name():
    saved = Saved(leaves=(Leaf("step", "number 3", True, "3"),))
    assert saved.has(Leaf("trainer._step", "number 3", True, "3"))
    assert not saved.has(Leaf("trainer.seen", "number 3", True, "3"))
    assert saved.like("number 3") == "step"


@pytest.mark.parametrize(
    ("words", "recipe"),
    [
        ("bitstep pretrain nano", Pretrained("nano", ())),
        ("bitstep pretrain -o runs/a nano --set a=2", Pretrained("nano", ("a=2",))),
        ("python -m bitstep pretrain --steps 4 nano", Pretrained("nano", ())),
        ("python pretrain nano", None),
        ("bitstep record -- python train.py", None),
    ],
)
def test_a_command_of_our_engine_is_known_by_its_words(words, recipe):
    assert recipe_of(words.split()) == recipe
