"""Records that use every column, the golden directory, and ways to break a copy of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from bitstep.records import Box, FlatRange, Record, Site
from bitstep.trace import TraceWriter
from bitstep.trace.index import (
    CLOSED,
    NO_CHAIN,
    FileName,
    IndexEntry,
    pack_entry,
    pack_header,
    read_index,
)
from bitstep.trace.schema import SCHEMA

GOLDEN = Path(__file__).parent.parent / "golden" / "trace"
NAME = FileName(0, 0)
HEADER_BYTES = 56
ENTRY_BYTES = 48


def full_record(seq: int, step: int) -> Record:
    """A record in which no field has its default."""
    site = Site(step, 7, "backward", f"grad_in.{step}", "input-grad", 2, "chunk1:h.3", "aten::mm",
                4, "scale")  # fmt: skip
    place = Box((6, 4), (2, 0), (3, 4))
    return Record(seq, site, 2**64 - seq - 1, "bfloat16", (6, 4), place, 9, seq - 1, 2**32 - 1)


def step_records(step: int, first: int) -> list[Record]:
    """Three rows: a metric, a whole row of every field, a flat part."""
    flat = FlatRange((5, 3), 8, 16)
    return [
        Record(first, Site(step, -1, "forward", "metric.loss"), 0x40490FDB, "float32"),
        full_record(first + 2, step),
        Record(
            first + 3, Site(step, 0, "reduce", "grad", module="h.0.w"), 11, "int8", (5, 3), flat
        ),
    ]


def write_steps(directory: Path, process: int, steps: int, per_file: int = 1000) -> list[Record]:
    """Steps 1 to `steps`, closed. The root of a step is 1000 + step. Gives back the records."""
    written: list[Record] = []
    with TraceWriter(directory, process, per_file) as trace:
        for step in range(1, steps + 1):
            rows = step_records(step, 4 * step)
            trace.write(rows)
            trace.end_step(step, 1000 + step)
            written += rows
    return written


def write_golden(directory: Path) -> None:
    """What tests/golden/trace holds: process 0 in two files, process 1 in one."""
    write_steps(directory, 0, 3, per_file=2)
    write_steps(directory, 1, 3)


def copy_of_small(tmp_path: Path, steps: int = 4) -> Path:
    directory = tmp_path / "trace"
    write_steps(directory, 0, steps)
    return directory


def vouch(directory: Path, segments: list[tuple[int, int, int, bytes]]) -> None:
    """Write a pair of files whose index vouches for any bytes: what a hostile writer can do."""
    header, chain = pack_header(NAME, NO_CHAIN)
    index, end, stream = header, 0, b""
    for step, rows, root, raw in segments:
        end += len(raw)
        stream += raw
        entry, chain = pack_entry(chain, step, rows, root, end, raw)
        index += entry
    directory.mkdir(exist_ok=True)
    (directory / NAME.stream).write_bytes(stream)
    (directory / NAME.index).write_bytes(index)


def segments_of(directory: Path) -> list[tuple[int, int, int, bytes]]:
    """The parts of a whole pair, ready to be changed and vouched for again."""
    raw = (directory / NAME.stream).read_bytes()
    parts, start = [], 0
    for entry in read_index(directory / NAME.index):
        parts.append((entry.step, entry.rows, entry.root, raw[start : entry.end]))
        start = entry.end
    return parts


def arrow_segments(schema: pa.Schema, *batches: pa.RecordBatch, **options: object) -> list[bytes]:
    """The bytes that Arrow writes for each batch, and for the end of the stream."""
    sizes, sink = [0], pa.BufferOutputStream()
    stream = pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options))
    for batch in batches:
        stream.write_batch(batch)
        sizes.append(sink.tell())
    stream.close()
    raw = sink.getvalue().to_pybytes()
    ends = [*sizes[1:], len(raw)]
    return [raw[start:end] for start, end in zip(sizes, ends, strict=True)]


def one_row(**columns: object) -> pa.RecordBatch:
    """A batch of one right row, with some columns exchanged."""
    right: dict[str, object] = dict.fromkeys(SCHEMA.names, 1)
    for name in ("phase", "pass", "module", "op", "slot", "part", "dtype"):
        right[name] = "x"
    right |= {"shape": [4], "place": None, **columns}
    arrays = [
        right[field.name]
        if isinstance(right[field.name], pa.Array)
        else pa.array([right[field.name]], field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def vouch_for_batch(directory: Path, batch: pa.RecordBatch, **options: object) -> None:
    """A whole trace of step 1 that holds `batch` and is vouched for."""
    body, end = arrow_segments(batch.schema, batch, **options)
    vouch(directory, [(1, batch.num_rows, 5, body), (CLOSED, 0, 0, end)])


def change(path: Path, edit: Callable[[bytearray], object]) -> None:
    raw = bytearray(path.read_bytes())
    edit(raw)
    path.write_bytes(raw)


def fresh_copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def good_entries(directory: Path) -> tuple[IndexEntry, ...]:
    return read_index(directory / NAME.index)
