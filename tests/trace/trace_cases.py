"""Records that use every column, the golden directory, and ways to break a copy of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from bitstep.records import Box, Flag, FlatRange, Record, Site
from bitstep.trace import Columns, TraceWriter, read_index
from bitstep.trace.index import CLOSED, NO_CHAIN, FileName, IndexBytes, IndexEntry, checksum
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


def op_records(step: int, first: int) -> list[Record]:
    """What level `op` writes beside what the other levels do: every flag, names of list arguments,
    a call whose rows share a head, boxes and flat parts, a row that stands for a gap."""
    call = Site(step, 1, "forward", "args", module="Net.0", op="aten::addmm", microbatch=0)
    foreach = call._replace(phase="optimizer", op="aten::_foreach_add_", microbatch=-1, module="")
    part = Box((6, 4), (step % 3, 0), (3, 4))
    rows = [
        Record(0, Site(step, 1, "data", "level"), 3, "int64"),
        Record(0, call, step, "int64"),
        Record(0, call._replace(slot="at.train.py:17"), 0, "int64"),
        *(
            Record(0, call._replace(slot=f"in.{at}"), 7 * step + at, "bfloat16", (6, 4), part,
                   step, first + at - 9, flag)
            for at, flag in enumerate(Flag)
        ),
        Record(0, foreach._replace(slot="mutated.0[Net.0.weight:grad]"), 2**63 + step, "float32",
               (6, 4), FlatRange((6, 4), 4 * step, 48)),
        Record(0, Site(step, 1, "backward", "gap", op="no room: " + "x" * 3000), 0, "int64",
               flags=Flag.GAP | Flag.RAISED),
        Record(0, Site(step, 1, "optimizer", "root"), 1000 + step, "uint64"),
    ]  # fmt: skip
    return [row._replace(seq=first + at, flags=int(row.flags)) for at, row in enumerate(rows)]


def add(columns: Columns, record: Record) -> int:
    """Give a record to a recorder's columns; its step and seq are theirs to give."""
    site = record.site
    head = columns.head(site.rank, site.phase, site.pass_, site.microbatch, site.module, site.op)
    return columns.add(
        head, site.occurrence, site.slot, record.digest, record.dtype, record.shape,
        record.place, record.version, record.writer, record.flags, site.part,
    )  # fmt: skip


def write_op_steps(directory: Path, process: int, steps: int, per_file: int = 1000) -> list[Record]:
    """As `write_steps`, at level `op` and through `Columns`."""
    written: list[Record] = []
    columns = Columns()
    with TraceWriter(directory, process, per_file) as trace:
        for step in range(1, steps + 1):
            rows = op_records(step, len(written))
            assert [add(columns, row) for row in rows] == [row.seq for row in rows]
            trace.end_step_columns(step, 1000 + step, columns)
            written += rows
    return written


def write_golden(directory: Path) -> None:
    """What tests/golden/trace holds: level `step` of process 0 in two files and of process 1 in
    one, level `op` of process 1000, which has a folder. Run this file to write it again."""
    write_steps(directory, 0, 3, per_file=2)
    write_steps(directory, 1, 3)
    write_op_steps(directory, 1000, 3, per_file=2)


def files_below(directory: Path) -> list[str]:
    return sorted(
        path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()
    )


def copy_of_small(tmp_path: Path, steps: int = 4) -> Path:
    directory = tmp_path / "trace"
    write_steps(directory, 0, steps)
    return directory


class Segment(NamedTuple):
    """The bytes of one step of a stream, and what an index says of them."""

    step: int
    rows: int
    root: int
    raw: bytes
    dictionaries: int = 0


def vouch(directory: Path, segments: list[Segment]) -> None:
    """Write a pair of files whose index vouches for any bytes: what a hostile writer can do."""
    index = IndexBytes(NAME, NO_CHAIN)
    raw, stream = bytearray(index.header), bytearray()
    for step, rows, root, piece, dictionaries in segments:
        stream += piece
        raw += index.entry(step, rows, dictionaries, root, len(stream), checksum(piece))
    directory.mkdir(exist_ok=True)
    (directory / NAME.stream).write_bytes(stream)
    (directory / NAME.index).write_bytes(raw)


def segments_of(directory: Path) -> list[Segment]:
    """The parts of a whole pair, ready to be changed and vouched for again."""
    raw = (directory / NAME.stream).read_bytes()
    parts, start = [], 0
    for entry in read_index(directory / NAME.index):
        piece = raw[start : entry.end]
        parts.append(Segment(entry.step, entry.rows, entry.root, piece, entry.dictionaries))
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
    words = sum(pa.types.is_dictionary(field.type) for field in batch.schema)
    vouch(directory, [Segment(1, batch.num_rows, 5, body, words), Segment(CLOSED, 0, 0, end)])


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


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    write_golden(GOLDEN)
