"""What `bitstep log` prints: every step, every attempt, bits beside values, damage at the end."""

from __future__ import annotations

import json
import math
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bitstep.errors import RunError, TraceError
from bitstep.records import Record, Site
from bitstep.report import log_json, log_text
from bitstep.trace import TraceWriter, metric_bits
from bitstep.trace.run import read_run


def rows_of(step: int, seq: int, loss: float, slots: tuple[str, ...] = ()) -> list[Record]:
    """What the engine records of one step, on two logical ranks; `slots`: metrics beside."""
    numbers = count(seq)

    def metric(slot: str, value: float, rank: int = -1) -> Record:
        site = Site(step, rank, "forward", f"metric.{slot}")
        return Record(next(numbers), site, metric_bits(value, "float64"), "float64")

    rows = [metric("loss", loss), metric("loss", 9.0, rank=0), metric("grad_norm", 0.5)]
    rows += [metric("tokens", 2048.0), *(metric(slot, 1 / 3) for slot in slots)]
    for rank in (0, 1):
        for phase, slot in (("data", "batch"), ("start", "rng")):
            site = Site(step, rank, phase, slot)
            rows.append(Record(next(numbers), site, 16 * step + rank, "int64", (2, 8)))
    rows.append(Record(next(numbers), Site(step, -1, "optimizer", "root.moments"), 77, "uint64"))
    return rows


def start_rows(step: int) -> list[Record]:
    return [Record(0, Site(step, -1, "start", "root.moments"), 77, "uint64")]


def write_attempt(
    run: Path, number: int, steps: dict[int, int], start: int = 0, close: bool = True
) -> None:
    """An attempt that records `steps` (step to root) after the start state of root `start`."""
    directory = run / f"attempt-{number:03d}"
    trace = TraceWriter(directory, 0)
    first = min(steps) - 1
    trace.write(start_rows(first))
    trace.end_step(first, start)
    for step, root in steps.items():
        trace.write(rows_of(step, 20 * step, 5 + step / 8))
        trace.end_step(step, root)
    if close:
        trace.close()
        end = {"status": "finished", "step": step, "root": f"{root:016x}"}
        (directory / "end.json").write_text(json.dumps(end))


def test_a_line_per_step_the_newest_first(tmp_path: Path) -> None:
    write_attempt(tmp_path, 0, {1: 0xAAAAAAAA00000001, 2: 0xBBBBBBBB00000002}, start=7)
    assert log_text(tmp_path).splitlines() == [
        "attempt 0: steps 0 to 2; finished",
        "",
        "step  root      loss   norm  tokens  batch",
        "2     bbbbbbbb  5.25   0.5   2048    e8c3b9d1",
        "1     aaaaaaaa  5.125  0.5   2048    347076ac",
        "0     00000000  -      -     -       -         attempt 0; the state it began with",
    ]


def recorded_rows(seq: int) -> list[Record]:
    """What a recorder writes of one step of rank 1: streams, two microbatches, several numbers."""

    def row(phase: str, slot: str, digest: int, dtype: str, **where: Any) -> Record:
        return Record(next(numbers), Site(1, 1, phase, slot, **where), digest, dtype)

    numbers = count(seq)
    loss = metric_bits(2.5, "float32")
    return [
        *(row("data", "rng", 7 + n, "uint8", module=m) for n, m in enumerate(("torch", "numpy"))),
        *(row("data", "batch", 20 + n, "int64", module=str(n), microbatch=n) for n in (0, 1)),
        *(row("data", "batch", 30 + n, "uint64", microbatch=n) for n in (0, 1)),
        *(row("backward", "metric.loss", loss + n, "float32", microbatch=n) for n in (0, 1)),
        row("forward", "metric.lm loss", 1 << 63, "float32", microbatch=0),
        row("forward", "rng", 99, "uint8", op="aten.bernoulli_"),
        row("optimizer", "root.params", 77, "uint64"),
    ]


def test_a_recording_is_shown_by_its_first_rank_and_nobody_disagrees(tmp_path: Path) -> None:
    directory = tmp_path / "attempt-000"
    with TraceWriter(directory, 1) as trace:
        trace.write(recorded_rows(0))
        trace.end_step(1, 0xAAAAAAAA00000001)
    (directory / "life.json").write_text("{}")
    assert log_text(tmp_path).splitlines() == [
        "attempt 0: steps 1 to 1; recorded to its end",
        "",
        "step  root      loss  batch",
        "1     aaaaaaaa  2.5   bf88abc7",
    ]
    row = log_json(tmp_path)[0]
    assert row["batch"] == {"1": "000000000000001e", "1 microbatch 1": "000000000000001f"}
    assert row["rng"] == {"1 numpy": "0000000000000008", "1 torch": "0000000000000007"}
    assert row["roots"] == {"params": "000000000000004d"}
    assert row["metrics"]["lm loss"] == {
        "value": None,
        "bits": "8000000000000000",
        "dtype": "float32",
    }
    assert row["notes"] == []


def test_a_recording_that_was_cut_says_so(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "attempt-000", 1)
    trace.write(recorded_rows(0))
    trace.end_step(1, 1)
    (tmp_path / "attempt-000" / "life.json").write_text("{}")
    first = log_text(tmp_path).splitlines()[0]
    assert first == "attempt 0: steps 1 to 1; no end marker: it was killed, or still runs"


def test_last_counts_steps_and_not_lines(tmp_path: Path) -> None:
    write_attempt(tmp_path, 0, {1: 1, 2: 2, 3: 3}, close=False)
    write_attempt(tmp_path, 1, {3: 3, 4: 4}, start=2)
    steps = [line.split()[0] for line in log_text(tmp_path, last=2).splitlines()[4:7]]
    assert steps == ["4", "3", "3"]
    assert "step  root" not in log_text(tmp_path, last=0)


def test_known_metrics_come_in_order_and_new_ones_after_them(tmp_path: Path) -> None:
    slots = ("aux", "eval_loss", "lr", "z_loss", "load_balancing", "mtp_2", "mtp_1")
    with TraceWriter(tmp_path / "attempt-000", 0) as trace:
        trace.write(rows_of(1, 0, 2.0, slots))
        trace.end_step(1, 1)
    head = log_text(tmp_path).splitlines()[2].split()
    assert head == ["step", "root", "loss", "mtp_1", "balance", "z", "norm", "lr", "tokens",
                    "eval", "aux", "mtp_2", "batch"]  # fmt: skip


def test_a_later_attempt_supersedes_and_equal_roots_are_not_remarked(tmp_path: Path) -> None:
    write_attempt(tmp_path, 0, {1: 1, 2: 2, 3: 3}, close=False)
    write_attempt(tmp_path, 1, {3: 3}, start=2)
    notes = {(row["step"], row["attempt"]): row["notes"] for row in log_json(tmp_path)[:-1]}
    assert notes == {
        (0, 0): ["the state it began with"],
        (1, 0): [],
        (2, 0): [],
        (2, 1): ["the state it began with"],
        (3, 0): ["superseded by attempt 1"],
        (3, 1): [],
    }


def test_roots_that_differ_between_attempts_are_said_so(tmp_path: Path) -> None:
    write_attempt(tmp_path, 0, {1: 1, 2: 2, 3: 3}, close=False)
    write_attempt(tmp_path, 1, {3: 4}, start=9)
    text = log_text(tmp_path)
    assert text.count("root differs from attempt 0") == 2
    rows = {(row["step"], row["attempt"]): row for row in log_json(tmp_path)[:-1]}
    assert rows[3, 0]["superseded_by"] == 1
    assert rows[3, 1]["notes"] == ["root differs from attempt 0"]
    assert rows[2, 1]["notes"] == ["the state it began with", "root differs from attempt 0"]


def test_json_has_value_and_bits_and_is_json(tmp_path: Path) -> None:
    write_attempt(tmp_path, 0, {1: 2**64 - 1})
    row = log_json(tmp_path)[1]
    assert row == json.loads(json.dumps(row, allow_nan=False))
    assert row == {
        "kind": "step",
        "step": 1,
        "attempt": 0,
        "root": "ffffffffffffffff",
        "metrics": {
            "grad_norm": {"value": 0.5, "bits": "3fe0000000000000", "dtype": "float64"},
            "loss": {"value": 5.125, "bits": "4014800000000000", "dtype": "float64"},
            "tokens": {"value": 2048.0, "bits": "40a0000000000000", "dtype": "float64"},
        },
        "roots": {"moments": "000000000000004d"},
        "batch": {"0": "0000000000000010", "1": "0000000000000011"},
        "rng": {"0": "0000000000000010", "1": "0000000000000011"},
        "is_start": False,
        "superseded_by": None,
        "notes": [],
    }


@pytest.mark.parametrize(
    ("value", "shown"), [(math.nan, "nan"), (-math.inf, "-inf"), (1 / 3, 1 / 3)]
)
def test_what_json_cannot_hold_is_a_string(tmp_path: Path, value: float, shown: object) -> None:
    with TraceWriter(tmp_path / "attempt-000", 0) as trace:
        trace.write(rows_of(1, 0, value))
        trace.end_step(1, 1)
    metric = log_json(tmp_path)[0]["metrics"]["loss"]
    assert (metric["value"], metric["bits"]) == (shown, f"{metric_bits(value, 'float64'):016x}")
    assert str(shown)[:6] in log_text(tmp_path)


def test_a_metric_of_an_unknown_dtype_has_bits_and_no_value(tmp_path: Path) -> None:
    rows = [Record(0, Site(1, -1, "forward", "metric.loss"), 2**40, "float32")]
    rows += [Record(1, Site(1, -1, "forward", "metric.x"), 7, "bfloat16")]
    with TraceWriter(tmp_path / "attempt-000", 0) as trace:
        trace.write(rows)
        trace.end_step(1, 1)
    metrics = log_json(tmp_path)[0]["metrics"]
    assert [metrics[name]["value"] for name in ("loss", "x")] == [None, None]
    assert metrics["loss"]["bits"] == f"{2**40:016x}"


def test_processes_that_disagree_are_named(tmp_path: Path) -> None:
    for process, loss in ((0, 1.0), (1, 1.0), (2, 2.0)):
        with TraceWriter(tmp_path / "attempt-000", process) as trace:
            trace.write(rows_of(1, 0, loss))
            trace.end_step(1, 1)
    assert log_json(tmp_path)[0]["notes"] == ["processes disagree about metric.loss"]


def test_damage_stands_at_the_end(tmp_path: Path) -> None:
    write_attempt(tmp_path, 0, {1: 1}, close=False)
    text = log_text(tmp_path).splitlines()
    assert text[0] == "attempt 0: steps 0 to 1; no end marker: it was killed, or still runs"
    assert text[-1] == (
        "attempt 0: cut: rank-00000.000.index, byte 152: no end marker after 2 steps"
    )
    assert log_json(tmp_path)[-1] == {"kind": "damage", "attempt": 0, "text": text[-1][11:]}


def test_words_from_a_file_cannot_steer_a_terminal(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "attempt-000", 0) as trace:
        trace.write(rows_of(1, 0, 1.0, ("\x1b[2J\u202eevil",)))
        trace.end_step(1, 1)
    (tmp_path / "attempt-000" / "\x1b[31m.index").write_text("")
    assert "\x1b" not in log_text(tmp_path)
    assert "\u202e" not in log_text(tmp_path)


def test_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run to read"):
        log_text(tmp_path / "none")
    with pytest.raises(RunError, match="no directory attempt-000"):
        log_json(tmp_path)


def test_an_attempt_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    write_attempt(tmp_path / "other", 0, {1: 1})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "attempt-000").symlink_to(tmp_path / "other" / "attempt-000")
    with pytest.raises(TraceError, match="is a link or a file"):
        read_run(tmp_path / "run")


def test_an_attempt_that_is_missing_is_damage(tmp_path: Path) -> None:
    for number in (0, 2):
        write_attempt(tmp_path, number, {1: 1})
    assert [attempt.damage for attempt in read_run(tmp_path)] == [
        (),
        ("cut: attempt-001: the attempt is missing",),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not an end marker"),
        ("[" * 60_000, "not an end marker"),
        ('{"status": "finished", "step": 1, "root": "x"}', "not an end marker"),
        ('{"status": "won", "step": 1, "root": "1"}', "status 'won' at step 1"),
        ('{"status": "finished", "step": [1], "root": "1"}', "status 'finished' at step [1]"),
        ('{"status": "finished", "step": 1, "root": "2"}', "root 0000000000000002 of step 1"),
    ],
)
def test_an_end_marker_that_cannot_be_is_damage(tmp_path: Path, text: str, words: str) -> None:
    write_attempt(tmp_path, 0, {1: 1})
    (tmp_path / "attempt-000" / "end.json").write_text(text)
    (attempt,) = read_run(tmp_path)
    assert attempt.status is None
    assert [words in line for line in attempt.damage] == [True]
