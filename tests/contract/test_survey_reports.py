"""Reports of surveys: the round trip, what two of them differ in, and files that are none."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bitstep.cli import run
from bitstep.contract.survey import Difference, Measured, Report, differences, partition
from bitstep.contract.survey_file import MOST_BYTES, parse, read, shipped
from bitstep.errors import ContractError
from bitstep.report.survey import difference_lines, rows, summary

STEADY = Measured(
    op="aten.abs", ops=("aten.abs",), bits="00000000000000aa", off=((1, 8), (1, 8)),
    on=((1, 8), (1, 8)), threads="aa", alignment="a" * 16, rows="==", environments="aa",
)  # fmt: skip
RACY = replace(
    STEADY, op="aten.put_", off=((1, 8), (5, 64)), on=(), raises="RuntimeError: put_", threads=""
)
SPLIT = replace(STEADY, op="aten.sum", threads="ab", parts={"threads": ("grad.w",)})
CASES = {"abs f32": STEADY, "put_ f32": RACY, "sum f32": SPLIT, "sum f64": replace(SPLIT)}
SMALL = Report(
    device="cpu", machine={"model name": "One CPU"}, versions={"torch": "9.9"},
    inputs="0123456789abcdef", threads=(1, 2), rows=(1, 3), environments=("A=b",), cases=CASES,
)  # fmt: skip


def text_with(**changed):
    return json.dumps({**json.loads(SMALL.text()), **changed}).encode()


def case_with(**changed):
    cases = json.loads(SMALL.text())["cases"]
    cases["abs f32"] |= changed
    return text_with(cases=cases)


def test_a_report_survives_its_file(tmp_path):
    (tmp_path / "a.json").write_text(SMALL.text())
    assert read(tmp_path / "a.json") == SMALL


def test_a_report_has_a_line_for_each_case():
    (line,) = [line for line in SMALL.text().splitlines() if line.startswith('"put_ f32"')]
    assert line.startswith(
        '"put_ f32": {"op":"aten.put_","ops":["aten.abs"],"bits":"00000000000000aa",'
        '"off":"1/8 5/64","raises":"RuntimeError: put_"'
    )


def test_letters_stand_for_what_is_equal():
    assert partition([5, 6, 5, 7]) == "abac"
    assert partition([]) == ""


def test_equal_reports_have_no_difference():
    assert differences(SMALL, SMALL) == ()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"bits": "00000000000000bb"}, ("bits", "00000000000000aa", "00000000000000bb")),
        ({"off": ((1, 8), (2, 64))}, ("run to run", "repeats", "varies")),
        ({"on": ((2, 64), (1, 8))}, ("run to run, flag on", "repeats", "varies")),
        ({"raises": "no"}, ("run to run, flag on", "repeats", "raises")),
        ({"threads": "ab"}, ("threads", "aa", "ab")),
        ({"alignment": "ab" * 8}, ("alignment", "a" * 16, "ab" * 8)),
        ({"rows": "x="}, ("rows", "==", "x=")),
        ({"environments": "ab"}, ("environments", "aa", "ab")),
        ({"bits": "", "failed": "no"}, ("bits", "00000000000000aa", "failed")),
    ],
)
def test_each_axis_that_came_out_otherwise_is_named(changed, expected):
    other = replace(SMALL, cases={**CASES, "abs f32": replace(STEADY, **changed)})
    assert differences(SMALL, other) == (Difference("abs f32", *expected),)


def test_how_many_results_of_a_race_were_distinct_is_chance():
    other = replace(SMALL, cases={**CASES, "put_ f32": replace(RACY, off=((1, 8), (64, 64)))})
    assert differences(SMALL, other) == ()


def test_cases_that_one_report_lacks_are_left_out():
    few = replace(SMALL, cases={"abs f32": STEADY})
    assert differences(SMALL, few) == differences(few, SMALL) == ()
    with pytest.raises(ContractError, match="no case in common"):
        differences(few, replace(SMALL, cases={"put_ f32": RACY}))


@pytest.mark.parametrize(
    "changed", [{"device": "cuda"}, {"inputs": "f" * 16}, {"threads": (1, 3)}, {"rows": (1, 4)}]
)
def test_surveys_of_other_things_are_not_compared(changed):
    with pytest.raises(ContractError, match=r"the surveys differ: .*; make both with one version"):
        differences(SMALL, replace(SMALL, **changed))


def test_what_varies_alike_shares_a_row():
    assert rows(SMALL) == [
        ("run to run", "flag on: raises", "put_ f32 5/64"),
        ("the flag", "it raises", "put_ f32"),
        ("thread count", "1, 2", "sum f32 f64 grad.w"),
    ]
    assert summary(SMALL) == "1 of 4 cases vary with nothing that was tried"


def test_the_table_of_the_shipped_report_fits_a_screen_or_two():
    from bitstep.cli.output import table
    from bitstep.report.survey import HEAD

    assert len(table(HEAD, rows(shipped()))) <= 42


def test_differences_are_lines():
    found = (
        Difference("a", "threads", "aa", "ab"),
        Difference("b", "bits", "0" * 16, "1" * 16),
        Difference("c", "run to run", "varies", "repeats"),
    )
    assert difference_lines(found) == [
        "a: threads: here aa, there ab",
        "c: run to run: here varies, there repeats",
        "a race is seen by chance: that only one survey saw it may mean nothing",
        "other bits at one thread: b",
    ]


BAD = {
    "not JSON": b"{",
    "not text": b"\xff",
    "a pickle": b"\x80\x04K\x01.",
    "deep": b"[" * 100_000,
    "a list": b"[]",
    "a key twice": b'{"format": 1, "format": 1}',
    "an endless number": text_with(rows=[1, 3]).replace(b"[1, 3]", b"[1, " + b"9" * 5000 + b"]"),
    "no format": json.dumps({"cases": {}}).encode(),
    "another format": text_with(format=2),
    "an unknown key": text_with(more=1),
    "no cases": text_with(cases={}),
    "cases in a list": text_with(cases=[]),
    "too many cases": text_with(cases={str(n): {"op": "a"} for n in range(4001)}),
    "another device": text_with(device="tpu"),
    "a device in a list": text_with(device=["cpu"]),
    "machine is no table": text_with(machine="x"),
    "a number for a version": text_with(versions={"torch": 2}),
    "control characters": text_with(versions={"torch": "\x1b[2J"}),
    "no digest": text_with(inputs="x"),
    "threads that are true": text_with(threads=[True, 2]),
    "many threads": text_with(threads=list(range(1, 60))),
    "a name of control characters": text_with(cases={"\x1b": {"op": "a"}}),
    "a case that is no table": text_with(cases={"a": 3}),
    "a case without op": text_with(cases={"a": {}}),
    "an unknown key in a case": case_with(more=1),
    "op is no text": case_with(op=3),
    "a long text": case_with(raises="x" * 401),
    "bits are no digest": case_with(bits="xyz"),
    "too few letters": case_with(alignment="ab"),
    "other letters": case_with(rows="A="),
    "one thread count too many": case_with(off="1/8 1/8 1/8"),
    "0 distinct": case_with(off="0/8 1/8"),
    "counts of a million": case_with(off="1/8 1/1000000"),
    "counts with a space behind": case_with(off="1/8 1/8 "),
    "counts in a list": case_with(off=[[1, 8], [1, 8]]),
    "ops is no list": case_with(ops="aten.abs"),
    "parts is no table": case_with(parts=[]),
    "a part is no list": case_with(parts={"threads": 3}),
    "parts in a list of numbers": case_with(parts={"threads": [3]}),
    "too large": b" " * (MOST_BYTES + 1),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_file_that_is_no_report_is_refused_in_one_line(content, tmp_path):
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(ContractError, match=r"bad\.json: .*not written by bitstep") as refused:
        read(tmp_path / "bad.json")
    assert len(str(refused.value).splitlines()) == 1


def test_the_control_of_the_files_above_is_read():
    assert parse(text_with(), Path("good")) == parse(case_with(), Path("good")) == SMALL


def test_a_missing_file_is_an_error_with_its_name(tmp_path):
    with pytest.raises(ContractError, match=r"none\.json: it cannot be read: No such file"):
        read(tmp_path / "none.json")


def test_a_pipe_that_nobody_writes_to_is_no_report_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ContractError, match="pipe: it is not JSON"):
        read(tmp_path / "pipe")


def test_the_command_measures_nothing_that_it_cannot_write_or_was_not_asked_for(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("bitstep.investigate.survey.survey", None)  # else it measures
    (tmp_path / "mine.json").write_text(SMALL.text())
    for words, said in (
        (["-o", str(tmp_path / "no" / "x.json")], "x.json cannot be written: name another file"),
        ([str(tmp_path / "mine.json"), "--ops", "mm"], "--ops and --device are for measuring"),
        ([str(tmp_path / "mine.json"), "--device", "cuda"], "--ops and --device are for measuring"),
    ):
        assert run(["survey", *words]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_the_command_shows_and_compares_reports(tmp_path, capsys):
    ours, theirs, bad = (tmp_path / f"{name}.json" for name in ("ours", "theirs", "bad"))
    ours.write_text(SMALL.text())
    other = replace(SMALL, cases={**CASES, "abs f32": replace(STEADY, threads="ab")})
    theirs.write_text(other.text())
    bad.write_bytes(BAD["a pickle"])
    assert run(["survey", str(ours), "--compare", str(ours)]) == 0
    assert "came out alike, with the same bits" in capsys.readouterr().out
    assert run(["survey", str(ours), "--compare", str(theirs)]) == 1
    assert "abs f32: threads: here aa, there ab" in capsys.readouterr().out
    assert run(["survey", str(ours), "--compare", str(bad)]) == 2
    assert "bad.json: it is not JSON" in capsys.readouterr().err
    assert run(["survey", str(ours), "--compare", "shipped"]) == 2
    assert "the surveys differ" in capsys.readouterr().err
    assert run(["survey", str(ours), "--compare", str(theirs), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["differences"] == [
        {"case": "abs f32", "axis": "threads", "ours": "aa", "theirs": "ab"}
    ]


def test_our_own_report_says_no_more_of_a_machine_than_its_kind():
    report = shipped()
    assert set(report.machine) <= {
        "vendor_id", "model name", "cpu family", "model", "stepping", "flags", "capability",
        "cpus", "architecture",
    }  # fmt: skip
    assert len(report.text()) < 100_000
