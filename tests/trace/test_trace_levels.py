"""All levels are one format: places, flags, long words and many rows, whole and damaged."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from trace_cases import (
    NAME,
    Segment,
    arrow_segments,
    good_entries,
    one_row,
    op_records,
    vouch,
    write_op_steps,
)

from bitstep.errors import TraceError
from bitstep.records import Box, Flag, Record
from bitstep.trace import Columns, TraceWriter, read_indexes, read_trace
from bitstep.trace.index import CLOSED
from bitstep.trace.schema import SCHEMA


def test_rows_of_level_op_come_back(tmp_path: Path) -> None:
    written = write_op_steps(tmp_path, 0, 4, per_file=3)
    read = read_trace(tmp_path)
    assert (list(read.records()), read.complete) == (written, True)
    assert {flag for row in written for flag in Flag(row.flags)} == set(Flag)
    assert read.table().column("op").to_pylist() == [row.site.op for row in written]


def test_a_hundred_thousand_rows_of_a_step_come_back(tmp_path: Path) -> None:
    columns = Columns()
    expected: list[Record] = []
    template = op_records(1, 0)
    for row in range(100_000):
        like = template[row % len(template)]
        site = like.site
        head = columns.head(site.rank, site.phase, site.pass_, row % 99, site.module, site.op)
        place = Box((row, 4), (0, 0), (row, 4)) if row % 3 else None
        columns.add(head, row, f"{site.slot}[{row % 500}]", row, "int8", (row, 4), place, row, row)
        site = site._replace(microbatch=row % 99, occurrence=row, slot=f"{site.slot}[{row % 500}]")
        expected.append(Record(row, site, row, "int8", (row, 4), place, row, row))
    with TraceWriter(tmp_path, 0) as trace:
        trace.end_step_columns(1, 1, columns)
    assert list(read_trace(tmp_path).records()) == expected


def test_a_step_that_is_too_large_is_refused_and_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitstep.trace.writer.MAX_STEP_BYTES", 9999)
    trace = TraceWriter(tmp_path, 0)
    trace.write([row for step in range(9) for row in op_records(1, 100 * step)])
    with pytest.raises(TraceError, match="the most is 9999: record at a lower level"):
        trace.end_step(1, 1)
    assert read_trace(tmp_path).steps == {}


@pytest.mark.parametrize("which", ["index", "stream"])
def test_every_flipped_bit_of_level_op_is_detected(tmp_path: Path, which: str) -> None:
    """Whole reading and reading of one late step: right rows or a line, never other rows."""
    written = write_op_steps(tmp_path, 0, 4)
    calls = len(op_records(1, 0))
    path = tmp_path / getattr(NAME, which)
    raw = path.read_bytes()
    rng = random.Random(which)
    for _ in range(100):
        byte = rng.randrange(len(raw))
        flipped = bytearray(raw)
        flipped[byte] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        read = read_trace(tmp_path)
        assert not read.complete
        rows = list(read.records())
        assert rows == written[: len(rows)]
        assert len(rows) == calls * len(read.steps)
        index = read_indexes(tmp_path)
        late = index.batch(0, 4)
        if late is None:
            assert index.damage
        elif late.damage is None:
            assert late.batch.column("digest").to_pylist() == [r.digest for r in written[-calls:]]


def test_vouched_garbage_in_level_op_is_named_and_ends_no_process(tmp_path: Path) -> None:
    """A hostile writer vouches for a changed stream: rows come back, or a line says why."""
    source = tmp_path / "source"
    write_op_steps(source, 0, 1)
    ends = [entry.end for entry in good_entries(source)]
    whole = (source / NAME.stream).read_bytes()
    rng = random.Random(5)
    lines = 0
    for _ in range(300):
        raw = bytearray(whole[: ends[0]])
        for _ in range(rng.randrange(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        first = Segment(1, len(op_records(1, 0)), 1, bytes(raw), 7)
        vouch(tmp_path / "changed", [first, Segment(CLOSED, 0, 0, whole[ends[0] :])])
        with suppress(TraceError):  # Another schema: another definition, other columns.
            read = read_trace(tmp_path / "changed")
            lines += len(read.damage)
            list(read.records())
    assert lines > 20


def test_arrow_that_cannot_read_a_step_is_damage(tmp_path: Path) -> None:
    """Fewer dictionaries than columns of words, and an index that says so."""
    body, end = arrow_segments(SCHEMA, one_row())
    words = b"\xff\xff\xff\xff"
    second = body.index(words, 8)
    third = body.index(words, second + 8)
    short = body[:second] + body[third:]
    vouch(tmp_path, [Segment(1, 1, 5, short, 6), Segment(CLOSED, 0, 0, end)])
    line = read_trace(tmp_path).damage[0]
    assert line.startswith("damaged: rank-00000.000.arrows, byte 0: Arrow cannot read it: ")


def test_the_first_of_many_wrong_rows_is_the_one_that_is_named(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path, 0)
    rows = op_records(1, 0)
    wrong = rows[5]._replace(place=Box((6, 4), (4, 1), (3, 4)))
    trace.write([*rows[:5], wrong, wrong._replace(seq=6, place=Box((6, 4), (9, 9), (9, 9)))])
    with pytest.raises(TraceError, match=r"'offsets': \[4, 1\], .* of shape \(6, 4\)"):
        trace.end_step(1, 1)
