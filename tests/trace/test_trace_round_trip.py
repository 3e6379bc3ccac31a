"""What is written is what is read: every field, every extreme, over files and processes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from trace_cases import (
    GOLDEN,
    files_below,
    full_record,
    op_records,
    step_records,
    write_golden,
    write_steps,
)

from bitstep.errors import TraceError
from bitstep.records import Box, FlatRange, Record, Site
from bitstep.trace import DEFINITION, TraceWriter, read_index, read_trace
from bitstep.trace.schema import SCHEMA


def test_every_field_comes_back(tmp_path: Path) -> None:
    record = full_record(5, 3)
    default = Record(0, Site(3, 0, "data", "batch"), 0, "int64")
    for field in Record._fields:
        assert getattr(record, field) != getattr(default, field)
    for field in Site._fields:
        assert field == "step" or getattr(record.site, field) != getattr(default.site, field)
    with TraceWriter(tmp_path, 0) as trace:
        trace.write([default, record])
        trace.end_step(3, 2**64 - 1)
    read = read_trace(tmp_path)
    assert list(read.records()) == [default, record]
    assert all(type(back) is Record for back in read.records())
    assert read.steps == {3: 2**64 - 1}
    assert (read.damage, read.complete) == ((), True)


@pytest.mark.parametrize(
    "record",
    [
        Record(0, Site(1, -1, "clip", "root"), 2**64 - 1, "uint64"),
        Record(2**63 - 1, Site(1, 2**31 - 1, "clip", "root"), 0, "uint64", (0, 2**63 - 1)),
        Record(0, Site(1, -1, "é\n\0", "", "", -1, "", "", 0, ""), 1, ""),
        Record(0, Site(1, 0, "data", "grad"), 1, "int8", (0, 4), Box((0, 4), (0, 4), (0, 0))),
        Record(0, Site(1, 0, "data", "grad"), 1, "int8", (), Box((), (), ())),
        Record(0, Site(1, 0, "data", "grad"), 1, "int8", (2,), FlatRange((2,), 2, 0)),
    ],
)
def test_extremes_come_back(tmp_path: Path, record: Record) -> None:
    with TraceWriter(tmp_path, 0) as trace:
        trace.write([record])
        trace.end_step(1, 0)
    assert list(read_trace(tmp_path).records()) == [record]


def test_steps_without_records_and_gaps_between_steps_are_kept(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, 0) as trace:
        trace.end_step(0, 7)
        trace.write(step_records(20, 0))
        trace.end_step(20, 8)
        trace.end_step(2**63 - 1, 9)
    read = read_trace(tmp_path)
    assert (read.steps, read.complete) == ({0: 7, 20: 8, 2**63 - 1: 9}, True)
    assert list(read.records()) == step_records(20, 0)


def test_a_run_of_no_steps_is_whole(tmp_path: Path) -> None:
    TraceWriter(tmp_path, 0).close()
    read = read_trace(tmp_path)
    assert (read.steps, read.damage, read.complete) == ({}, (), True)
    assert list(read.records()) == []
    assert read.table().num_rows == 0


def test_rotated_files_are_joined_in_order(tmp_path: Path) -> None:
    written = write_steps(tmp_path, 0, 23, per_file=2)
    assert len(list(tmp_path.glob("*.arrows"))) == 12
    read = read_trace(tmp_path)
    assert list(read.records()) == written
    assert read.steps == {step: 1000 + step for step in range(1, 24)}
    assert (read.damage, read.complete) == ((), True)


def test_processes_are_read_one_by_one_or_all(tmp_path: Path) -> None:
    first, second = write_steps(tmp_path, 0, 2), write_steps(tmp_path, 10, 3)
    read = read_trace(tmp_path)
    assert read.processes == (0, 10)
    assert list(read.records(0)) == first
    assert list(read.records(10)) == second
    assert list(read.records()) == first + second
    assert list(read.records(1)) == []


def test_equal_roots_are_the_root_and_different_ones_are_joined(tmp_path: Path) -> None:
    for process, root in ((0, 5), (1, 5), (2, 6)):
        with TraceWriter(tmp_path, process) as trace:
            trace.end_step(1, 5)
            trace.end_step(2, root)
    read = read_trace(tmp_path)
    assert read.steps[1] == 5
    assert read.steps[2] not in (5, 6)
    assert [read.roots(process)[2] for process in (0, 1, 2)] == [5, 5, 6]


def test_the_table_has_every_row_and_its_process(tmp_path: Path) -> None:
    written = write_steps(tmp_path, 0, 3, per_file=2) + write_steps(tmp_path, 3, 1)
    table = read_trace(tmp_path).table()
    assert table.column_names == ["process", *SCHEMA.names]
    assert table.column("process").to_pylist() == [0] * 9 + [3] * 3
    assert table.column("digest").to_pylist() == [record.digest for record in written]
    assert table.schema.metadata[b"bitstep.definition"] == b"bitstep-1"
    table.validate(full=True)


def test_any_arrow_tool_opens_a_stream(tmp_path: Path) -> None:
    written = write_steps(tmp_path, 0, 5)
    with pa.OSFile(str(tmp_path / "rank-00000.000.arrows")) as file:
        table = pa.ipc.open_stream(file).read_all()
    assert table.column("slot").to_pylist() == [record.site.slot for record in written]


def test_indexes_alone_give_steps_and_roots(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 3, per_file=2)
    for stream in tmp_path.glob("*.arrows"):
        stream.unlink()
    first = read_index(tmp_path / "rank-00000.000.index")
    second = read_index(tmp_path / "rank-00000.001.index")
    assert [(entry.step, entry.rows, entry.root) for entry in first] == [
        (1, 3, 1001),
        (2, 3, 1002),
        (-2, 0, 0),
    ]
    assert [(entry.step, entry.root) for entry in second] == [(3, 1003), (-1, 0)]


@pytest.mark.parametrize("name", ["rank-00000.000.arrows", "rank-00000.009.index", "x.index"])
def test_read_index_refuses_a_path_that_is_no_index(name: str) -> None:
    with pytest.raises(TraceError, match=r"not the name of an index|no such index"):
        read_index(GOLDEN / name)


def test_golden_files_are_read() -> None:
    read = read_trace(GOLDEN)
    expected = [row for step in (1, 2, 3) for row in step_records(step, 4 * step)]
    calls = len(op_records(1, 0))
    assert list(read.records(0)) == expected
    assert list(read.records(1)) == expected
    assert list(read.records(1000)) == [
        row for step in (1, 2, 3) for row in op_records(step, calls * (step - 1))
    ]
    assert read.steps == {1: 1001, 2: 1002, 3: 1003}
    assert (read.damage, read.complete) == ((), True)


def test_equal_records_give_the_golden_bytes(tmp_path: Path) -> None:
    """Holds for every pyarrow tried (17, 20, 26): the file is canonical, not only readable.

    Last written again for format 2: the index counts dictionaries, and a chain covers all before
    it; the streams differ from format 1 in the number in their schema alone.
    """
    write_golden(tmp_path)
    names = files_below(GOLDEN)
    assert names == files_below(tmp_path)
    for name in names:
        assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes(), name


def test_the_definition_is_the_one_of_the_fingerprint() -> None:
    fingerprint = pytest.importorskip("bitstep.fingerprint")
    assert fingerprint.DEFINITION == DEFINITION
