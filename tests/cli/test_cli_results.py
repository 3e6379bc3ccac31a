"""What verbs print of results that their rooms give them."""

from __future__ import annotations

import json
import types

import pytest

from bitstep.bench.tax import TaxRow
from bitstep.cli import run
from bitstep.cli.output import table
from bitstep.investigate import prove as proving
from bitstep.records import Outcome, Verdict

ROWS = tuple(TaxRow(name, 1, 5, 10.0, 9.8, 1.02, 1.0, 1.04) for name in ("all", "tree"))


def test_a_table_aligns_and_wraps_its_last_column():
    lines = table(("name", "outcome", "detail"), [("exact resume", "proven", "word " * 30)])
    assert lines[0] == "name          outcome  detail"
    assert lines[1].startswith("exact resume  proven   word word")
    assert lines[2].startswith(" " * 23 + "word")
    assert len(lines) == 3
    assert max(map(len, lines)) <= 100


def test_a_cell_without_words_is_a_row_all_the_same():
    assert table(("name", "detail"), [("a", "")]) == ["name  detail", "a"]


@pytest.fixture
def proven(monkeypatch):
    guarantee = types.SimpleNamespace(name="repeatability", outcome="proven", detail="9 rows")
    control = types.SimpleNamespace(name="without data", outcome="not tried", detail="")
    certificate = types.SimpleNamespace(
        verdict=Verdict(Outcome.UNVERIFIED, "unverified", ("without data",)),
        guarantees=(guarantee,),
        controls=(control,),
        arms=(types.SimpleNamespace(name="reference", processes=2, seconds=12.34),),
        to_json=lambda: "{}\n",
    )
    monkeypatch.setattr(proving, "prove", lambda *words, **more: certificate)


TABLE = """name           outcome    detail
repeatability  proven     9 rows
without data   not tried
"""
ARMS = """
arm        processes  seconds
reference  2          12.3
"""


@pytest.mark.parametrize(("words", "arms"), [([], ""), (["-v"], ARMS)])
def test_prove_prints_a_table_and_with_v_its_arms(words, arms, proven, capsys):
    assert run(["prove", "nano", "-o", "proof", *words]) == 2
    last = "\nunverified: proof/certificate.json\n"
    assert capsys.readouterr().out == TABLE + arms + last


def test_prove_json_is_the_certificate(proven, capsys):
    assert run(["prove", "nano", "--json"]) == 2
    assert capsys.readouterr().out == "{}\n"


@pytest.fixture
def measured(monkeypatch):
    def bench_tax(recipe, *, processes, pairs, said=lambda row: None):
        for row in ROWS:
            said(row)
        return ROWS

    monkeypatch.setattr("bitstep.bench.tax.bench_tax", bench_tax)


def test_the_tax_prints_each_row_once(measured, capsys):
    assert run(["bench", "tax", "nano"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["all", "tree"]
    assert err == ""


def test_the_tax_as_json_is_json_alone(measured, capsys):
    assert run(["bench", "tax", "nano", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [row["comparison"] for row in json.loads(out)] == ["all", "tree"]
    assert err == ""


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_a_run_in_place_of_a_checkpoint_is_told_where_they_are(verb, tmp_path, capsys):
    folder = tmp_path / "checkpoints"
    for step in (20, 10):
        (folder / f"step-{step:08d}").mkdir(parents=True)
    assert run(["checkpoint", verb, str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"bitstep: {tmp_path} is a run: name a step of {folder}, which holds "
        "step-00000010, step-00000020\n"
    )


def test_a_run_without_checkpoints_is_told_so(tmp_path, capsys):
    (tmp_path / "checkpoints").mkdir()
    assert run(["checkpoint", "show", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("checkpoints, which holds none yet\n")


def test_a_run_of_many_checkpoints_names_the_newest(tmp_path, capsys):
    for step in range(1, 8):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    assert run(["checkpoint", "show", str(tmp_path)]) == 2
    names = ", ".join(f"step-{step:08d}" for step in range(3, 8))
    assert capsys.readouterr().err.endswith(f", which holds {names} and 2 older\n")


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_a_checkpoint_that_is_not_there_says_what_to_name(verb, capsys):
    assert run(["checkpoint", verb, "nope"]) == 2
    assert capsys.readouterr().err == (
        "bitstep: nope: there is no such folder; name one of a step, as in "
        "runs/first/checkpoints/step-00000050\n"
    )
