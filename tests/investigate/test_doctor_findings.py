"""Findings: their order, what a list of them amounts to, and the lints that make some of them."""

import pytest

from bitstep.investigate.doctor.finding import Finding, outcome, ranked
from bitstep.investigate.doctor.lints import lint_findings
from bitstep.records import Outcome

CALM = {
    "deterministic": True, "warn only": False, "fill": False, "threads": 1,
    "cudnn benchmark": False, "inductor deterministic": True,
}  # fmt: skip
MOMENTS = ("import", "first parameter", "first step", "end")


def note(flags=(), **other):
    """The notes of a calm program; `flags` are (moments, changes)."""
    moments = {moment: dict(CALM) for moment in MOMENTS}
    for names, changes in flags:
        for name in names:
            moments[name].update(changes)
    quiet = {
        "flags": moments, "late variables": [], "threads": [], "modes": [], "compiled": 0,
        "late hooks": [], "graph replays": 0, "full backward hooks": [], "zero bubble": [],
        "unaligned": [], "outside": [], "triton": [], "construction": [], "chose threads": True,
    }  # fmt: skip
    return quiet | other


def found(*notes, dtypes=()):
    return [(one.severity, one.what) for one in lint_findings(notes, frozenset(dtypes))]


def finding(severity, what="x"):
    return Finding(severity=severity, what=what, why="y", fix="")


def test_the_worst_comes_first_and_the_same_once():
    mild, bad = finding("note"), finding("differs")
    assert ranked([mild, bad, finding("unknown"), mild]) == (bad, finding("unknown"), mild)


@pytest.mark.parametrize(
    ("severities", "expected"),
    [
        ([], Outcome.SAME),
        (["note", "under a setting"], Outcome.SAME),
        (["outside of view"], Outcome.UNVERIFIED),
        (["unknown", "note"], Outcome.UNVERIFIED),
        (["unknown", "may vary"], Outcome.DIFFERENT),
        (["varies"], Outcome.DIFFERENT),
        (["differs"], Outcome.DIFFERENT),
        (["missed by a checkpoint"], Outcome.DIFFERENT),
    ],
)
def test_what_changes_bits_outweighs_what_nobody_could_tell(severities, expected):
    assert outcome(map(finding, severities)) is expected


def test_a_calm_program_has_no_lint():
    assert found(note(), note()) == []


@pytest.mark.parametrize(
    ("lively", "severity", "what"),
    [
        (
            note([(("first step", "end"), {"warn only": True})]),
            "may vary", "determinism is set to warn only",
        ),
        (
            note([(("import", "first parameter"), {"deterministic": False})]),
            "note", "determinism was switched on late: it was off at the first parameter",
        ),
        (
            note([(("first parameter",), {"deterministic": False})],
                 construction=["megatron.core"]),
            "may vary", "determinism was switched on late: it was off at the first parameter",
        ),
        (
            note([(("end",), {"deterministic": False})]),
            "may vary", "determinism was switched off while the program ran",
        ),
        (
            note(**{"late variables": ["MKL_CBWR"]}),
            "may vary", "set after torch was imported: MKL_CBWR",
        ),
        (
            note([(("end",), {"inductor deterministic": False})], compiled=1),
            "may vary", "Inductor is not deterministic though PyTorch is",
        ),
        (
            note(modes=["mine.Mode"], compiled=2),
            "may vary", "a dispatch mode lies over compiled regions: mine.Mode",
        ),
        (
            note(**{"late hooks": ["Linear"]}),
            "note", "hooks were added after a compile, on Linear",
        ),
        (
            note(**{"full backward hooks": ["Net.0"], "zero bubble": ["ScheduleZBVZeroBubble"]}),
            "may vary", "full backward hooks under ScheduleZBVZeroBubble",
        ),
        (
            note(**{"graph replays": 3}),
            "outside of view", "3 replays of CUDA graphs",
        ),
        (
            note(threads=["pool-1"]),
            "note", "1 other Python thread: pool-1",
        ),
        (
            note(outside=["flash_attn"]),
            "unknown", "kernels of flash_attn",
        ),
        (
            note(triton=["scale"]),
            "unknown", "kernels written for Triton: scale",
        ),
        (
            note(unaligned=["Net.0.weight"]),
            "note", "parameters that begin inside of another tensor's memory, or of a file",
        ),
    ],
)  # fmt: skip
def test_each_lint_finds_its_program_and_nothing_else(lively, severity, what):
    assert found(note(), lively) == [(severity, what)]


@pytest.mark.parametrize(
    "harmless",
    [
        note(modes=["mine.Mode"]),  # nothing is compiled
        note(**{"full backward hooks": ["Net.0"]}),  # no such schedule
        note([(("end",), {"inductor deterministic": False})]),  # nothing is compiled
        note([(MOMENTS, {"deterministic": False, "warn only": False})]),  # off all the time
    ],
)
def test_half_of_a_lint_is_none(harmless):
    assert found(harmless) == []


def test_fp4_with_memory_fill_is_told():
    filling = note([(("end",), {"fill": True})])
    assert found(filling, dtypes=["float4_e2m1fn_x2"]) == [("note", "4-bit floats with memory fill "
                                                            "on")]  # fmt: skip
    assert found(filling, dtypes=["float32"]) == []
    assert found(note(), dtypes=["float4_e2m1fn_x2"]) == []
