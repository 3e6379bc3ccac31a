"""`bitstep bench record`: its arms do what they are called. Speed is never asserted."""

import importlib.util
import json
import subprocess
import sys

import pytest

from bitstep.bench.record import ARMS, TARGETS, skipped
from bitstep.bench.record_arm import MSPROBE, Order
from bitstep.trace.hashed import counted


def arm(folder, name):
    order = Order("small", name, warmup=1, steps=2, folder=str(folder))
    command = [sys.executable, "-m", "bitstep.bench.record_arm", order.to_word()]
    subprocess.run(command, check=True, capture_output=True)
    return json.loads((folder / "seconds.json").read_text())


def test_every_target_is_of_an_arm_that_is_measured():
    assert {name for targets in TARGETS.values() for name in targets} <= set(ARMS)


@pytest.mark.long
def test_the_bare_arm_records_nothing_and_times_each_step(tmp_path):
    assert len(arm(tmp_path, "bare")) == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_rehashing_hashes_at_least_as_much(tmp_path):
    for name in ("op", "op rehashed"):
        (tmp_path / name).mkdir()
        arm(tmp_path / name, name)
    carried, rehashed = (counted(tmp_path / name / "run") for name in ("op", "op rehashed"))
    assert carried.rows == rehashed.rows
    assert carried.hashed <= rehashed.hashed


@pytest.mark.long
def test_torchs_own_mode_runs_beside_it(tmp_path):
    assert len(arm(tmp_path, "debug mode")) == 2


@pytest.mark.parametrize("installed", [True, False])
def test_an_arm_of_a_package_that_is_not_installed_is_skipped_with_a_word(monkeypatch, installed):
    found = object() if installed else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    assert (skipped(MSPROBE) is None) is installed
    assert skipped("op") is None
