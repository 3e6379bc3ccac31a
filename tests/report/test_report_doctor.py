"""The first screen of the doctor: 24 lines, the worst first, nothing lost without a word."""

import subprocess
import sys
from pathlib import Path

import pytest

from bitstep.report.doctor import doctor_text


def finding(severity="varies", what="aten.x has other bits each time", **other):
    return {"severity": severity, "what": what, "where": "Net", "why": "atomics", "fix": "set it",
            "evidence": "measured: here", "count": 3, **other}  # fmt: skip


def operation(at):
    return {"op": f"aten.op{at}", "class": "deterministic", "calls": 2, "rows": [], "known": "k"}


def diagnosis(*findings, **other):
    return {"outcome": "different", "title": "1 finding that can change bits", "machine": None,
            "findings": findings, "operations": [operation(at) for at in range(60)],
            "compared": "two executions of 2 steps on 1 rank: the same bits", "rules": [],
            **other}  # fmt: skip


def test_one_finding_is_told_whole():
    assert doctor_text(diagnosis(finding())).splitlines() == [
        "different: 1 finding that can change bits",
        "varies     aten.x has other bits each time (3 calls: Net)",
        "           atomics",
        "           fix: set it",
        "           known: measured: here",
        "operations 60: 60 deterministic",
        "compared   two executions of 2 steps on 1 rank: the same bits",
    ]


def test_the_mild_ones_are_shortened_before_the_serious_ones():
    mild = [finding("note", f"note {at}") for at in range(12)]
    lines = doctor_text(diagnosis(finding(), *mild)).splitlines()
    assert len(lines) == 19
    assert lines[1:6] == [
        "varies     aten.x has other bits each time (3 calls: Net)",
        "           atomics",
        "           fix: set it",
        "           known: measured: here",
        "note       note 0 (3 calls: Net)",
    ]


@pytest.mark.parametrize("number", [1, 5, 20, 300])
@pytest.mark.parametrize("words", [1, 100])
def test_a_first_screen_has_24_lines_and_100_columns_at_most(number, words):
    long = " ".join(["word"] * words)
    many = [finding(what=f"{at} {long}", why=long, fix=long) for at in range(number)]
    lines = doctor_text(diagnosis(*many, finding("note"))).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100


def test_what_does_not_fit_is_counted_by_kind():
    many = [finding(what=str(at)) for at in range(30)] + [finding("note"), finding("unknown")]
    text = doctor_text(diagnosis(*many))
    assert "and        20 varies, 1 note, 1 unknown: -v shows all" in text


def test_full_text_has_every_finding_and_every_operation():
    many = [finding(what=f"finding number {at}") for at in range(30)]
    text = doctor_text(diagnosis(*many), full=True)
    assert all(f"finding number {at} (" in text for at in range(30))
    assert all(f"aten.op{at}: deterministic, 2 calls (k)" in text for at in range(60))


def test_rules_that_need_no_value_are_told_from_those_that_nobody_set():
    def rule(fill):
        return {"name": "A", "verdict": "unset", "fill": fill, "said": "", "value": None}

    text = doctor_text(diagnosis(operations=[], rules=[rule(None), rule("1"), rule("1")]))
    assert "rules      3: 1 left as it is, 2 unset" in text


def test_what_a_program_is_called_cannot_break_a_line():
    text = doctor_text(diagnosis(finding(what="a\x1b[2Jb\nc", where="")))
    assert "varies     a\\x1b[2Jb\\nc" in text


def test_the_screen_needs_no_torch():
    program = (
        "import sys; sys.modules['torch'] = None; import bitstep.report.doctor, "
        "bitstep.investigate.doctor.machine, bitstep.cli.doctor"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], check=True, cwd=root)
