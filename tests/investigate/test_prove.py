"""What a proof refuses before anything is run."""

import pytest

from bitstep.errors import DataError, LayoutError, RecipeError, RunError, UsageError
from bitstep.investigate.prove import prove


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    def run_arms(plan, said):
        raise AssertionError("an arm was run")

    monkeypatch.setattr("bitstep.investigate.prove.run_arms", run_arms)


def test_bad_input_is_refused_before_anything_runs(tmp_path):
    folder = tmp_path / "proof"
    with pytest.raises(RecipeError, match="no recipe 'giga'"):
        prove("giga", folder=folder)
    with pytest.raises(LayoutError, match="3 processes"):
        prove("nano", processes=(1, 3), folder=folder)
    with pytest.raises(UsageError, match="at least 8 steps"):
        prove("nano", steps=4, changes=["schedule.warmup=1"], folder=folder)
    with pytest.raises(UsageError, match="no fault is named"):
        prove("nano", fault="gremlin", folder=folder)
    assert not folder.exists()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="is not empty"):
        prove("nano", folder=tmp_path)


def test_a_corpus_that_cannot_be_read_or_is_too_small_is_refused(tmp_path):
    proof, corpus = tmp_path / "proof", tmp_path / "corpus"
    changes = [f"data.folder={corpus}"]
    with pytest.raises(DataError, match="no such folder"):
        prove("nano", changes=changes, folder=proof)
    corpus.mkdir()
    (corpus / "a.txt").write_text("short")
    with pytest.raises(DataError, match="train split has 6 tokens"):
        prove("nano", changes=[*changes, "data.held_out=0.0"], folder=proof)
    (corpus / "a.txt").write_text("long " * 100)
    with pytest.raises(DataError, match="held-out split has 0 tokens"):
        prove("nano", changes=[*changes, "data.held_out=0.0"], folder=proof)
    assert not proof.exists()
