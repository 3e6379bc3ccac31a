"""`bitstep bench startup`: every piece is done, in a fresh process. Speed is never asserted."""

import json

import pytest

from bitstep.bench import startup
from bitstep.bench.startup import GIT, TARGET, TOTAL, bench_startup
from bitstep.bench.startup_arm import PIECES
from bitstep.cli import run
from bitstep.errors import RunError


def test_the_rows_are_medians_with_one_target(monkeypatch, capsys):
    found = iter([(1.0, 0.5), (3.0, 0.1), (2.0, 0.2)])

    def once():
        wall, cpu = next(found)
        return dict.fromkeys(PIECES, (wall / 1000, cpu / 1000))

    monkeypatch.setattr(startup, "_run", once)
    monkeypatch.setattr(startup, "_git", lambda: (0.005, 0.004))
    assert run(["bench", "startup", "--repeats", "3", "--json"]) == 0
    rows = {row["piece"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == [*PIECES, TOTAL, GIT]
    assert (rows["collect"]["wall_ms"], rows["collect"]["cpu_ms"]) == (2.0, 0.2)
    assert rows[TOTAL]["wall_ms"] == pytest.approx(8.0)
    assert {n for n, row in rows.items() if row["target_ms"] == TARGET} == {TOTAL}


def test_a_process_that_fails_is_an_error(monkeypatch):
    monkeypatch.setattr(startup.sys, "executable", "/bin/false")
    with pytest.raises(RunError, match="a process of the bench failed: it said nothing"):
        bench_startup(1)


@pytest.mark.long
def test_every_piece_is_done_in_a_process():
    rows = {row.piece: row for row in bench_startup(1)}
    assert all(rows[piece].wall_ms > 0 for piece in (*PIECES, TOTAL, GIT))
