"""The first screen, and the JSON, which docs/check.md promises."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from check_fakes import PARAMETERS, data_parallel, write

from bitstep.check import Check, Checked, Compared, Finding, Kind, Place, ranks_text
from bitstep.records import Outcome
from bitstep.report.check import LINES, WIDTH, check_json, check_text, finding_line

WEIGHT, _ = PARAMETERS
FINDING = Finding(
    Kind.REPLICAS, 0, 4, (2,), True, Place("optimizer", WEIGHT, "", 1, "param"),
    "Net.w (param) on rank 2 differs from ranks 0 and 1 since step 4",
    ("They differ as the step leaves them.",), "likely: most ranks agree", ("Net.b (param)",),
)  # fmt: skip
CHECKED = Checked(
    Outcome.DIFFERENT, "different: 1 finding, in step 4", "runs/b", None, (FINDING,),
    Compared(replicas=12), (0, 1, 2), (1, 9), ("no collective was recorded",), (), (),
    ("bitstep record --level op --steps 3:6 -- COMMAND",),
)  # fmt: skip


def test_the_screen_says_what_where_since_when_how_sure_and_what_next():
    assert check_text(CHECKED).splitlines() == [
        "different: 1 finding, in step 4",
        "replicas   Net.w (param) on rank 2 differs from ranks 0 and 1 since step 4",
        "           They differ as the step leaves them.",
        "           Also: Net.b (param).",
        "           How sure: likely: most ranks agree.",
        "compared   steps 1 to 9, ranks 0 to 2: 12 readings of replicas",
        "not seen   no collective was recorded",
        "means      Agreement is not correctness: ranks that agree can all be wrong, and so can a "
        "repetition.",
        "next       bitstep record --level op --steps 3:6 -- COMMAND",
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 40])
@pytest.mark.parametrize("name", ["Net.w", "Net." + "deeper." * 40 + "w", "a\nb\x1b[2J" * 30])
def test_the_screen_has_24_lines_of_100_columns(count, name):
    finding = replace(
        FINDING, title=f"{name} differs", because=(name, name, name, name), also=(name,) * 9
    )
    checked = replace(
        CHECKED, findings=(finding,) * count, notes=(name,) * 9, damage=(name,) * 9, hints=(name,)
    )
    lines = check_text(checked).split("\n")
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    assert all(line.isprintable() for line in lines)
    assert lines[1].startswith("replicas ")
    assert any(line.startswith("next ") for line in lines)


def test_findings_that_have_no_room_are_counted():
    checked = replace(CHECKED, findings=(FINDING,) * 40)
    (line,) = [line for line in check_text(checked).splitlines() if "more findings" in line]
    assert line == "and 36 more findings (--json)"


def test_a_line_of_following_is_one_line():
    assert finding_line(replace(FINDING, title="a\nb")) == "replicas: a\\nb"


def test_the_document_names_every_key_of_the_json():
    page = (Path(__file__).parents[2] / "docs" / "check.md").read_text()
    value = json.loads(json.dumps(check_json(CHECKED)))
    keys = [*value, *value["compared"], *value["findings"][0], *value["findings"][0]["place"]]
    assert [key for key in keys if f"`{key}`" not in page] == []
    assert [kind for kind in Kind if f"`{kind}`" not in page] == []
    assert value["findings"][0]["ranks"] == [2]


def test_agreement_is_not_called_correctness(tmp_path):
    run = write(tmp_path, (0, 1), range(5), data_parallel(2))
    lines = check_text(Check(run).result()).splitlines()
    assert lines[0] == "nothing found: all that was compared agrees"
    assert any("Agreement is not correctness" in line for line in lines)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((3,), "rank 3"),
        ((0, 1), "ranks 0 and 1"),
        ((0, 1, 2), "ranks 0 to 2"),
        ((0, 2, 4), "ranks 0, 2 and 4"),
        ((0, 1, 2, 5, 6), "ranks 0 to 2, 5 and 6"),
        (tuple(range(0, 40, 2)), "ranks 0, 2, 4, 6, 8, 10 and others"),
    ],
)
def test_ranks_for_a_person(ranks, text):
    assert ranks_text(ranks) == text
