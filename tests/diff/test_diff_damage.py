"""Damage is no difference, and what is damaged is never called the same. Nothing crashes."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from simulated import Life, record

from bitstep.diff import compare_runs
from bitstep.errors import RunError, TraceError
from bitstep.records import Outcome
from bitstep.trace import read_indexes


def fault(life: Life, rank: int, step: int, moment: str) -> None:
    if (rank, step, moment) == (1, 3, "loss"):
        life.noise = 99


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("whole")
    for name, broken in (("a", None), ("b", fault)):
        states = record(folder / name, steps=3, world=2, fault=broken)
        record(folder / name, steps=2, world=2, states=states, attempt=1)
    return folder / "a", folder / "b"


def damaged(run: Path, copy: Path, chance: random.Random, cut: bool) -> str:
    """Copy a run with one byte flipped, or one file cut; gives back which."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    path = chance.choice(sorted(copy.rglob("rank-*")))
    raw = bytearray(path.read_bytes())
    at = chance.randrange(len(raw))
    if cut:
        del raw[at:]
    else:
        raw[at] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(raw))
    return f"{path.relative_to(copy)} at {at}, cut {cut}"


def judge(runs: tuple[Path, Path], copy: Path, number: int, cut: bool) -> None:
    chance = random.Random(number)
    side = chance.randrange(2)
    what = damaged(runs[side], copy, chance, cut)
    alone = compare_runs(runs[side], copy)
    assert alone.outcome is Outcome.UNVERIFIED, what
    pair = (copy, runs[1]) if side == 0 else (runs[0], copy)
    found = compare_runs(*pair)
    assert found.outcome is not Outcome.SAME, what
    # What differs without damage differs from step 3 on, and nothing before it.
    assert all(cause.where.step >= 3 for cause in found.causes), what


@pytest.mark.parametrize("number", range(8))
def test_a_flipped_bit(runs: tuple[Path, Path], tmp_path: Path, number: int) -> None:
    judge(runs, tmp_path / "x", number, cut=False)


@pytest.mark.parametrize("number", range(4))
def test_a_cut_file(runs: tuple[Path, Path], tmp_path: Path, number: int) -> None:
    judge(runs, tmp_path / "x", 1000 + number, cut=True)


@pytest.mark.long
def test_three_hundred_flips_and_a_hundred_cuts(runs: tuple[Path, Path], tmp_path: Path) -> None:
    for number in range(300):
        judge(runs, tmp_path / "x", number, cut=False)
    for number in range(100):
        judge(runs, tmp_path / "x", 1000 + number, cut=True)


def test_a_flip_in_a_step_that_the_indexes_call_equal_is_seen(tmp_path: Path) -> None:
    for name in ("a", "b"):
        record(tmp_path / name)
    stream = tmp_path / "b" / "attempt-000" / "rank-00000.000.arrows"
    raw = bytearray(stream.read_bytes())
    end = int(read_indexes(stream.parent).process(0).end[4])
    raw[end - 40] ^= 1
    stream.write_bytes(bytes(raw))
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    assert (found.outcome, found.causes) == (Outcome.UNVERIFIED, ())
    assert found.damage[0].startswith("b, attempt 0: damaged: rank-00000.000.arrows")


def test_a_missing_rank_makes_equal_runs_unverified(tmp_path: Path) -> None:
    for name in ("a", "b"):
        record(tmp_path / name, world=2)
        for path in (tmp_path / name / "attempt-000").glob("rank-00001.*"):
            path.unlink()
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    assert (found.outcome, found.reasons[0]) == (
        Outcome.UNVERIFIED, "A ran on 2 ranks, rank 1 recorded nothing",
    )  # fmt: skip


def test_runs_without_a_common_rank_have_nothing_to_pair(tmp_path: Path) -> None:
    record(tmp_path / "a")
    (tmp_path / "b" / "attempt-000").mkdir(parents=True)
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    assert found.outcome is Outcome.UNVERIFIED
    assert found.reasons[0] == "nothing to pair: the runs have no rank and step in common"


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "a")
    with pytest.raises(RunError, match="no run"):
        compare_runs(tmp_path / "a", tmp_path / "nowhere")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "attempt-000").symlink_to(tmp_path / "a" / "attempt-000")
    with pytest.raises(TraceError, match="link"):
        compare_runs(tmp_path / "a", tmp_path / "b")
