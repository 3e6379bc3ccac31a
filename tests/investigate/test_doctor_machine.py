"""What a doctor says of machines that are not this one."""

import pytest

from bitstep.contract.survey_file import shipped
from bitstep.investigate.doctor.machine import machine_findings


def rule(name="A", kind="variable", library="MKL", fill="1", verdict="unset", value=None):
    return {"name": name, "kind": kind, "library": library, "fill": fill, "verdict": verdict,
            "value": value, "said": "said", "why": "why", "evidence": "here", "mark": "measured",
            }  # fmt: skip


def machine(*rules, torch=(), **other):
    found = {"capability": shipped().machine["capability"], "threads": 2, "fill": False, "gpus": []}
    return {"executable": "python", "cores": 4, "usable cores": 4, "versions": {}, "allocator": [],
            "torch": found | dict(torch), "rules": rules} | other  # fmt: skip


def said(found):
    return [(one.severity, one.what) for one in machine_findings(found)]


def test_a_machine_that_is_as_it_should_be_has_no_finding():
    assert said(machine(rule(verdict="held"), rule(verdict="does not apply"))) == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (machine(rule()), ("may vary", "environment variables that decide bits are not set: 1")),
        (
            machine(rule(kind="torch", library="PyTorch")),
            ("note", "settings of PyTorch that decide bits are not set: 1"),
        ),
        (
            machine(rule(verdict="too late")),
            ("may vary", "environment variables that decide bits are not set: 1"),
        ),
        (machine(rule(verdict="too late", value="2")), ("may vary", "A: said")),
        (machine(rule(verdict="broken", value="2")), ("may vary", "A: said")),
        (
            machine(rule(library="NCCL"), torch={"gpus": ["H200"]}),
            ("may vary", "environment variables that decide bits are not set: 1"),
        ),
        (machine(torch={"threads": 8}), ("note", "8 threads on 4 usable cores")),
        (machine(cores=8), ("note", "4 of 8 cores may be used here")),
        (machine(allocator=["jemalloc"]), ("note", "memory comes from jemalloc")),
        (
            machine(torch={"fill": True}),
            ("note", "in deterministic mode PyTorch fills the memory of torch.empty"),
        ),
        (
            machine(torch={"capability": "SVE256"}),
            ("note", "no survey was made on a CPU with SVE256"),
        ),
        (
            machine(versions={"flash-attn": "2.4.0"}),
            ("note", "flash-attn 2.4.0: no deterministic backward"),
        ),
        (machine(torch={"problem": "absent"}), ("unknown", "PyTorch cannot be imported")),
    ],
)
def test_each_machine_has_its_one_finding(found, expected):
    assert said(found) == [expected]


@pytest.mark.parametrize(
    ("found", "fix"),
    [
        (rule(), "bitstep run --deterministic -- COMMAND sets them before Python starts"),
        (
            rule(name="OMP_NUM_THREADS"),
            "bitstep run --deterministic --threads N -- COMMAND sets them before Python starts",
        ),
        (
            rule(kind="torch", library="PyTorch"),
            "bitstep run --deterministic -- COMMAND sets them right behind import torch",
        ),
    ],
)
def test_the_way_that_is_given_sets_what_is_not_set(found, fix):
    (one,) = machine_findings(machine(found))
    assert one.fix == fix


@pytest.mark.parametrize(
    "found",
    [
        machine(rule(fill=None)),  # pinned, not chosen
        machine(rule(library="NCCL")),  # no GPU
        machine(versions={"flash-attn": "2.4.1"}),
    ],
)
def test_what_does_not_matter_here_is_not_told(found):
    assert said(found) == []
