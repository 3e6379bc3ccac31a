"""Processes of one launch share an attempt, a later life gets the next, whoever died when."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bitstep.errors import RunError
from bitstep.observe.attempt import claim, claims

ROOT = Path(__file__).parents[2]
LAUNCHER = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")


@pytest.fixture(autouse=True)
def without_launcher(monkeypatch):
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)


def life_of(run, *ranks, **variables):
    """The attempts that ranks get in processes of their own, which end when all have claimed."""
    code = (
        "import sys; from pathlib import Path; from bitstep.observe.attempt import claim\n"
        "print(claim(Path(sys.argv[1]), int(sys.argv[2]), 2).name, flush=True); sys.stdin.read()"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(run), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **variables},
        )
        for rank in ranks
    ]
    names = [process.stdout.readline().strip() for process in started]
    for process in started:
        process.communicate()
    return names


def test_ranks_of_one_launch_share_an_attempt(tmp_path):
    assert [claim(tmp_path, rank, 3) for rank in range(3)] == [tmp_path / "attempt-000"] * 3
    assert claims(tmp_path / "attempt-000") == {0: 3, 1: 3, 2: 3}


def test_parts_that_a_driver_runs_one_after_the_other_are_lives(tmp_path):
    assert life_of(tmp_path, 0) + life_of(tmp_path, 0) == ["attempt-000", "attempt-001"]


def test_a_rank_that_died_before_it_claimed_joins_its_new_life(tmp_path):
    assert life_of(tmp_path, 0) == ["attempt-000"]  # rank 1 of this life never came here
    assert life_of(tmp_path, 1, 0) == ["attempt-001", "attempt-001"]


def test_a_restart_by_torchrun_is_a_life(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert claim(tmp_path, 0).name == "attempt-000"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    # The claim before is of a process that lives, and of another rank: the count decides.
    assert claim(tmp_path, 1).name == "attempt-001"
    assert claim(tmp_path, 0).name == "attempt-001"


def test_two_launches_at_once_are_kept_apart_by_their_port(tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "1")
    assert claim(tmp_path, 0).name == "attempt-000"
    monkeypatch.setenv("MASTER_PORT", "2")
    assert claim(tmp_path, 1).name == "attempt-001"
    monkeypatch.setenv("MASTER_PORT", "1")
    assert claim(tmp_path, 1).name == "attempt-000"


def test_files_of_a_rank_without_a_claim_count(tmp_path):
    claim(tmp_path, 0)
    (tmp_path / "attempt-000/rank-00001.000.arrows").touch()
    assert claim(tmp_path, 1).name == "attempt-001"


def test_an_attempt_of_somebody_else_is_passed_by(tmp_path):
    (tmp_path / "attempt-000").mkdir()
    assert claim(tmp_path, 0).name == "attempt-001"


def test_claims_are_won_by_one(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        names = sorted(path.name for path in pool.map(lambda _: claim(tmp_path, 0), range(8)))
    assert names == [f"attempt-{number:03d}" for number in range(8)]
    assert not list(tmp_path.glob(".attempt-*"))


def test_a_claim_of_another_host_says_nothing_about_this_one(tmp_path):
    claim(tmp_path, 0)
    file = tmp_path / "attempt-000/claim-00000.json"
    file.write_text(json.dumps({"host": "elsewhere", "pid": 1, "started": 1, "restarts": "7"}))
    assert claim(tmp_path, 1).name == "attempt-000"


def test_a_claim_that_is_being_written_is_of_the_living(tmp_path):
    claim(tmp_path, 0)
    (tmp_path / "attempt-000/claim-00000.json").write_bytes(b"")
    assert claim(tmp_path, 1).name == "attempt-000"
    assert claims(tmp_path / "attempt-000") == {0: 0, 1: 0}


def test_a_folder_holds_a_thousand_ranks(tmp_path):
    claim(tmp_path, 2431, 2432)
    assert (tmp_path / "attempt-000/ranks-00002/claim-02431.json").exists()
    assert claims(tmp_path / "attempt-000") == {2431: 2432}


def test_what_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file.*cannot begin an attempt there"):
        claim(tmp_path / "file", 0)


def test_the_launcher_is_not_named_in_the_files(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "for-friends-only")
    claim(tmp_path, 0)
    assert all("friends" not in file.read_text() for file in tmp_path.rglob("*.json"))
