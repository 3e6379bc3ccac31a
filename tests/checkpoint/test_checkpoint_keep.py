"""Which checkpoint is taken, and which are removed."""

import os

import pytest
from checkpoint_fakes import saved

from bitstep.checkpoint import newest, prune, verify
from bitstep.errors import CheckpointError


def steps(root_dir):
    return [int(path.name[5:]) for path in sorted(root_dir.glob("step-*"))]


def test_the_newest_that_verifies_is_taken_and_the_skipped_are_named_with_reasons(tmp_path):
    paths = {step: saved(tmp_path, step) for step in (10, 20, 30, 40)}
    (paths[40] / "COMPLETE").unlink()
    path = paths[30] / "rank-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    found, skipped = newest(tmp_path)
    assert found == paths[20]
    assert [path for path, _ in skipped] == [paths[40], paths[30]]
    assert "no COMPLETE" in skipped[0][1]
    assert "rank-00001.safetensors" in skipped[1][1]


def test_nothing_is_found_where_nothing_is(tmp_path):
    assert newest(tmp_path) == (None, [])
    assert newest(tmp_path / "absent") == (None, [])
    assert prune(tmp_path / "absent", keep_last=1) == []


def test_only_exact_names_are_looked_at(tmp_path):
    for name in ("step-20", "step-00000020.bak", ".step-00000030.x.tmp", "step-0000002\u0663"):
        (tmp_path / name).mkdir()
    assert newest(tmp_path) == (None, [])


def test_steps_are_ordered_as_numbers(tmp_path):
    saved(tmp_path, 99_999_999)
    large = saved(tmp_path, 100_000_000)
    assert large.name == "step-100000000"
    assert newest(tmp_path)[0] == large


def test_prune_keeps_the_last_and_every_nth(tmp_path):
    for step in range(10, 80, 10):
        saved(tmp_path, step, world=1)
    removed = prune(tmp_path, keep_last=2, keep_every=30)
    assert [path.name for path in removed] == [f"step-000000{step}" for step in (10, 20, 40, 50)]
    assert steps(tmp_path) == [30, 60, 70]
    assert len(prune(tmp_path, keep_last=1)) == 2
    assert steps(tmp_path) == [70]
    assert prune(tmp_path, keep_last=5) == []


def test_prune_leaves_what_is_not_complete(tmp_path):
    for step in (10, 20, 30):
        saved(tmp_path, step, world=1)
    (tmp_path / "step-00000010" / "COMPLETE").unlink()
    (tmp_path / "step-00000030" / "COMPLETE").unlink()
    assert prune(tmp_path, keep_last=1) == []
    assert steps(tmp_path) == [10, 20, 30]


@pytest.mark.parametrize(("last", "every"), [(0, 0), (-1, 5), (1, -1)])
def test_prune_never_removes_the_newest(tmp_path, last, every):
    checkpoint = saved(tmp_path, world=1)
    with pytest.raises(CheckpointError, match="use at least 1 and 0"):
        prune(tmp_path, keep_last=last, keep_every=every)
    verify(checkpoint)


def test_a_prune_that_is_cut_leaves_nothing_that_looks_complete(tmp_path, monkeypatch):
    for step in (10, 20):
        saved(tmp_path, step, world=1)

    def cut(*args, **kwargs):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("bitstep.checkpoint.keep.shutil.rmtree", cut)
    with pytest.raises(CheckpointError, match=r"cannot remove .*step-00000010"):
        prune(tmp_path, keep_last=1)
    assert not (tmp_path / "step-00000010" / "COMPLETE").exists()
    assert os.listdir(tmp_path / "step-00000010")
