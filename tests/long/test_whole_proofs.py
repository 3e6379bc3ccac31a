"""Whole proofs of nano in fresh processes: they say yes, and with each fault they say no."""

import json

import pytest

from bitstep.launch.arm import run_arm


def proof(tmp_path, *words):
    log = tmp_path / "log"
    result = run_arm(
        ["prove", "nano", "--steps", "12", "-o", str(tmp_path / "proof"), *words], {}, log, 800
    )
    return result.exit, json.loads((tmp_path / "proof" / "certificate.json").read_text())


def outcomes(certificate):
    return {finding["name"]: finding["outcome"] for finding in certificate["guarantees"]}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_nano_is_proven_on_one_two_and_four_processes(tmp_path, precision):
    status, certificate = proof(
        tmp_path, "--processes", "1,2,4", "--set", f"run.precision={precision}"
    )
    assert (status, certificate["verdict"]) == (0, "proven")
    assert set(outcomes(certificate).values()) == {"proven"}
    assert {control["outcome"] for control in certificate["controls"]} == {"caught"}
    assert not (tmp_path / "proof" / "killed" / "attempt-000" / "end.json").exists()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_one_process_proves_no_layout_freedom(tmp_path):
    # With this seed the kill is late in a late step: it must still come before the end.
    words = ["--steps", "8", "--set", "schedule.warmup=2", "--set", "run.seed=35"]
    status, certificate = proof(tmp_path, "--processes", "1", *words)
    assert (status, certificate["verdict"]) == (0, "proven")
    assert outcomes(certificate) == {
        "repeatability": "proven",
        "exact resume": "proven",
        "layout freedom": "not tried",
    }
    assert certificate["killed_after"] in [f"killed after step {n} was recorded" for n in (6, 7)]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("fault", "refuted"),
    [
        ("left-fold", "layout freedom"),
        ("stock-reduction", "layout freedom"),
        ("fused-adamw", "layout freedom"),
        ("wall-clock-seed", "repeatability"),
        ("restore-without=random", "exact resume"),
    ],
)
def test_with_a_fault_its_guarantee_is_refuted(tmp_path, fault, refuted):
    status, certificate = proof(tmp_path, "--processes", "1,2", "--fault", fault)
    assert (status, certificate["verdict"]) == (1, "refuted")
    assert outcomes(certificate)[refuted] == "refuted"
    if refuted != "repeatability":
        assert outcomes(certificate)["repeatability"] == "proven"
