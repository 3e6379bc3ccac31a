"""One broken trace per rule. A hostile writer can vouch for anything; each rule holds alone."""

from __future__ import annotations

import os
import stat
import struct
import time
from pathlib import Path

import pyarrow as pa
import pytest
from trace_cases import (
    HEADER_BYTES,
    NAME,
    Segment,
    arrow_segments,
    change,
    copy_of_small,
    one_row,
    segments_of,
    vouch,
    vouch_for_batch,
    write_steps,
)

from bitstep.errors import TraceError
from bitstep.trace import read_indexes, read_trace
from bitstep.trace.index import (
    CLOSED,
    MAX_STEP_BYTES,
    NO_CHAIN,
    IndexBytes,
    checksum,
)
from bitstep.trace.schema import SCHEMA
from bitstep.trace.stream import BadStream


def damage_of(directory: Path) -> str:
    read = read_trace(directory)
    assert not read.complete
    assert len(read.damage) == 1
    list(read.records())
    read.table()
    return read.damage[0]


def forge_header(directory: Path, offset: int, raw: bytes) -> None:
    """Change bytes of the header of an index and make its checksum right again."""

    def edit(index: bytearray) -> None:
        index[offset : offset + len(raw)] = raw
        chain = checksum(bytes(index[: HEADER_BYTES - 8]))
        index[HEADER_BYTES - 8 : HEADER_BYTES] = chain.to_bytes(8, "little")

    change(directory / NAME.index, edit)


def test_the_helper_that_vouches_makes_whole_traces(tmp_path: Path) -> None:
    vouch(tmp_path / "copy", segments_of(copy_of_small(tmp_path)))
    assert read_trace(tmp_path / "copy").complete
    vouch_for_batch(tmp_path / "row", one_row())
    assert (read_trace(tmp_path / "row").complete, read_trace(tmp_path / "row").steps) == (
        True,
        {1: 5},
    )


def test_another_format_version_is_refused(tmp_path: Path) -> None:
    forge_header(copy_of_small(tmp_path), 8, struct.pack("<I", 1))
    with pytest.raises(TraceError, match=r"trace format 1, this bitstep reads 2"):
        read_trace(tmp_path / "trace")


def test_another_definition_is_refused(tmp_path: Path) -> None:
    forge_header(copy_of_small(tmp_path), 24, b"bitstep-2")
    with pytest.raises(TraceError, match=r"'bitstep-2', this bitstep compares 'bitstep-1'"):
        read_trace(tmp_path / "trace")


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"bitstep.format": "7", "bitstep.definition": "bitstep-1"}, "trace format '7'"),
        ({"bitstep.format": "2", "bitstep.definition": "md5"}, "definition 'md5'"),
        ({"bitstep.format": "2"}, "definition 'none'"),
        (None, "trace format 'none'"),
    ],
)
def test_the_schema_of_a_stream_must_say_the_same(
    tmp_path: Path, metadata: dict[str, str] | None, words: str
) -> None:
    body, end = arrow_segments(SCHEMA.with_metadata(metadata), one_row())
    vouch(tmp_path, [Segment(1, 1, 5, body, 7), Segment(CLOSED, 0, 0, end)])
    with pytest.raises(TraceError, match=words):
        read_trace(tmp_path)


@pytest.mark.parametrize("edit", ["drop", "add", "swap", "type", "nullable"])
def test_other_columns_are_refused(tmp_path: Path, edit: str) -> None:
    fields = list(SCHEMA)
    if edit == "drop":
        fields.pop()
    elif edit == "add":
        fields.append(pa.field("clock", pa.int64()))
    elif edit == "swap":
        fields[0], fields[1] = fields[1], fields[0]
    elif edit == "type":
        fields[2] = pa.field("rank", pa.int64(), nullable=False)
    else:
        fields[0] = pa.field("seq", pa.int64())
    schema = pa.schema(fields, metadata=SCHEMA.metadata)
    arrays = [pa.array([None], field.type) for field in schema]
    vouch_for_batch(tmp_path, pa.RecordBatch.from_arrays(arrays, schema=schema))
    with pytest.raises(TraceError, match="not the columns of trace format 2"):
        read_trace(tmp_path)


def test_wrong_magic_is_damage(tmp_path: Path) -> None:
    whole = copy_of_small(tmp_path)
    for raw in (b"\0" * 300, b"PK\3\4" * 100, b"bitstep-" * 50):
        (whole / NAME.index).write_bytes(raw)
        assert damage_of(whole) == (
            "damaged: rank-00000.000.index, byte 0: this is no header of a bitstep index"
        )


def test_an_index_without_a_stream_is_damage(tmp_path: Path) -> None:
    (copy_of_small(tmp_path) / NAME.stream).unlink()
    assert damage_of(tmp_path / "trace") == (
        "cut: rank-00000.000.arrows, byte 0: the stream is missing"
    )


def test_a_stream_without_an_index_is_damage(tmp_path: Path) -> None:
    (copy_of_small(tmp_path) / NAME.index).unlink()
    assert damage_of(tmp_path / "trace") == "cut: rank-00000.000.index: the index is missing"


def test_a_renamed_pair_is_damage(tmp_path: Path) -> None:
    whole = copy_of_small(tmp_path)
    for suffix in ("arrows", "index"):
        (whole / f"rank-00000.000.{suffix}").rename(whole / f"rank-00004.000.{suffix}")
    assert damage_of(whole) == (
        "damaged: rank-00004.000.index, byte 0: written as rank-00000.000.index, and renamed"
    )


@pytest.mark.parametrize(
    "name", ["rank-0.000.index", "rank-000000.000.arrows", "rank-00000.0.index", "x.arrows"]
)
def test_a_name_that_no_writer_gives_is_damage(tmp_path: Path, name: str) -> None:
    whole = copy_of_small(tmp_path)
    (whole / name).write_bytes(b"")
    assert damage_of(whole) == f"damaged: {name!r}: not a name of a trace file, so it was not read"


def test_other_files_are_no_business_of_a_trace(tmp_path: Path) -> None:
    (copy_of_small(tmp_path) / "end.json").write_text("{}")
    assert read_trace(tmp_path / "trace").complete


def test_an_empty_directory_is_cut_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    assert damage_of(tmp_path) == f"cut: {tmp_path.name}: no trace file"
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none")


@pytest.mark.parametrize("which", ["stream", "index"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "pipe", "socket"])
def test_only_plain_files_are_opened(tmp_path: Path, which: str, kind: str) -> None:
    whole = copy_of_small(tmp_path)
    path = whole / getattr(NAME, which)
    target = tmp_path / "elsewhere"
    path.rename(target)
    if kind == "link":
        path.symlink_to(target)
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "none")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        os.mknod(path, stat.S_IFSOCK | 0o600)
    start = time.monotonic()
    for read in (read_trace, read_indexes):
        with pytest.raises(TraceError, match=r"is a link|plain files only"):
            read(whole)
    assert time.monotonic() - start < 5  # A pipe without a writer would wait for ever.


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ((5, 1, 0, 0), "a step of bytes 100 to 0 "),
        ((5, 1, 0, 100), "a step of bytes 100 to 100 "),
        ((5, 0, 0, 100), "a step of bytes 100 to 100 "),
        ((5, 1, 0, 2**64 - 1), f"a step of bytes 100 to {2**64 - 1} "),
        ((5, 1, 0, 101 + MAX_STEP_BYTES), "a step of bytes 100 to "),
        ((5, 2**32 - 1, 0, 200), f"{2**32 - 1} rows and 0 dictionaries in 100 bytes"),
        ((5, 0, 0, 200, 101), "0 rows and 101 dictionaries in 100 bytes"),
        ((4, 1, 0, 200), "step 4 after step 4"),
        ((0, 1, 0, 200), "step 0 after step 4"),
        ((-3, 0, 0, 200), "an end marker with step -3"),
        ((-1, 1, 0, 200), "an end marker with step -1, 1 rows"),
        ((-1, 0, 0, 200, 1), "an end marker with step -1, 0 rows, 1 dictionaries"),
        ((-2, 0, 9, 200), "0 rows, 0 dictionaries and root 0000000000000009"),
    ],
)
def test_an_index_entry_that_cannot_be_is_damage(
    tmp_path: Path, entry: tuple[int, ...], words: str
) -> None:
    step, rows, root, end, *dictionaries = entry
    index = IndexBytes(NAME, NO_CHAIN)
    first = index.entry(4, 1, 0, 0, 100, 0)
    second = index.entry(step, rows, sum(dictionaries), root, end, 0)
    (tmp_path / NAME.index).write_bytes(index.header + first + second)
    (tmp_path / NAME.stream).write_bytes(b"")
    # The stream is cut as well; the index is read first and alone decides how far.
    read = read_trace(tmp_path)
    assert read.steps == {}
    assert words in read.damage[0]
    assert read.damage[0].startswith("damaged: rank-00000.000.index, byte 104: ")
    assert read_indexes(tmp_path).damage == read.damage


def test_a_huge_sparse_index_and_stream_cost_nothing(tmp_path: Path) -> None:
    whole = copy_of_small(tmp_path)
    start = time.monotonic()
    os.truncate(whole / NAME.index, 2**42)
    assert "something follows the end marker" in damage_of(whole)
    os.truncate(whole / NAME.index, HEADER_BYTES + 5 * 48)
    os.truncate(whole / NAME.stream, 2**42)
    assert "bytes after the end" in damage_of(whole)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"step": 2}, "a row of step 2 in the batch of step 1"),
        ({"seq": -1}, "seq -1 comes after seq -1"),
        ({"digest": None}, "column digest holds 1 nulls"),
        ({"shape": None}, "column shape holds 1 nulls"),
        ({"shape": [3, -1]}, "a shape with a negative size"),
        ({"module": None}, "column module holds 1 nulls"),
        ({"place": {"kind": "ring", "offsets": [0], "sizes": [1]}}, "does not lie in"),
        ({"place": {"kind": "box", "offsets": [3], "sizes": [2]}}, "does not lie in"),
        ({"place": {"kind": "box", "offsets": [-1], "sizes": [2]}}, "does not lie in"),
        ({"place": {"kind": "box", "offsets": [0, 0], "sizes": [1, 1]}}, "does not lie in"),
        ({"place": {"kind": "box", "offsets": [0], "sizes": []}}, "does not lie in"),
        ({"place": {"kind": "flat", "offsets": [0], "sizes": [-2]}}, "does not lie in"),
        ({"place": {"kind": "flat", "offsets": [2**62], "sizes": [2**62]}}, "does not lie in"),
        ({"place": {"kind": "flat", "offsets": [], "sizes": []}}, "does not lie in"),
        ({"place": {"kind": None, "offsets": [0], "sizes": [1]}}, "column place holds 1 nulls"),
    ],
)
def test_a_row_that_cannot_be_is_damage(
    tmp_path: Path, columns: dict[str, object], words: str
) -> None:
    vouch_for_batch(tmp_path, one_row(**columns))
    line = damage_of(tmp_path)
    assert line.startswith("damaged: rank-00000.000.arrows, byte 0: ")
    assert words in line


def test_nulls_inside_lists_and_dictionaries_are_damage(tmp_path: Path) -> None:
    inner = pa.array([[None]], pa.list_(pa.int64())).cast(pa.list_(pa.int64()))
    shape = pa.ListArray.from_arrays([0, 1], inner.flatten(), type=SCHEMA.field("shape").type)
    vouch_for_batch(tmp_path / "a", one_row(shape=shape))
    assert "column shape holds 1 nulls" in damage_of(tmp_path / "a")
    words = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([None], pa.utf8()))
    vouch_for_batch(tmp_path / "b", one_row(op=words))
    assert "column op holds 1 nulls" in damage_of(tmp_path / "b")


def test_a_word_outside_of_its_dictionary_is_damage(tmp_path: Path) -> None:
    words = pa.DictionaryArray.from_arrays(
        pa.array([7], pa.int32()), pa.array(["x"], pa.utf8()), safe=False
    )
    vouch_for_batch(tmp_path, one_row(op=words))
    assert "Arrow finds the batch invalid" in damage_of(tmp_path)


def test_seq_must_increase_over_steps_and_files(tmp_path: Path) -> None:
    first, second, end = arrow_segments(SCHEMA, one_row(step=1, seq=5), one_row(step=2, seq=5))
    segments = [Segment(1, 1, 0, first, 7), Segment(2, 1, 0, second), Segment(CLOSED, 0, 0, end)]
    vouch(tmp_path, segments)
    read = read_trace(tmp_path)
    assert (list(read.steps), "seq 5 comes after seq 5" in read.damage[0]) == ([1], True)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_bodies_are_refused_before_arrow_allocates(tmp_path: Path, codec: str) -> None:
    vouch_for_batch(tmp_path, one_row(), compression=codec)
    assert "a compressed Arrow message" in damage_of(tmp_path)


def test_an_index_that_vouches_for_something_else_is_damage(tmp_path: Path) -> None:
    parts = segments_of(copy_of_small(tmp_path))
    first, second, end = parts[0], parts[1], parts[-1]
    cases = {
        "no Arrow message": [first._replace(raw=b"garbage, vouched for" * 9), end],
        "lacks": [first._replace(raw=first.raw[:-8]), end],
        "3 rows where the index says 2": [first._replace(rows=2), end],
        "step 1 with 7 dictionaries, the bytes hold something else": [
            first._replace(raw=first.raw + second.raw), end],
        "a row of step 1 in the batch of step 9": [first._replace(step=9), end],
        "messages of kinds -1": [end],
        "with 6 dictionaries, the bytes hold something else": [first._replace(dictionaries=6), end],
        "with 0 dictionaries, the bytes hold something else": [
            first, second._replace(dictionaries=0), end],
        "no Arrow schema": [first._replace(raw=first.raw.replace(b"digest", b"dige\xff\xff")), end],
    }  # fmt: skip
    for number, (words, segments) in enumerate(cases.items()):
        vouch(tmp_path / str(number), segments)
        assert words in damage_of(tmp_path / str(number)), words


def test_a_batch_under_the_end_marker_is_damage(tmp_path: Path) -> None:
    first, second, *_ = segments_of(copy_of_small(tmp_path))
    vouch(tmp_path / "a", [first, Segment(CLOSED, 0, 0, second.raw)])
    assert "the index names step -1" in damage_of(tmp_path / "a")


def test_a_pair_that_follows_an_end_marker_is_damage(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 3, per_file=2)
    assert (tmp_path / NAME.index).read_bytes().startswith(IndexBytes(NAME, NO_CHAIN).header)
    segments = segments_of(tmp_path)
    vouch(tmp_path, [*segments[:-1], segments[-1]._replace(step=CLOSED)])
    assert damage_of(tmp_path).startswith("damaged: rank-00000.001.index: it follows an end marker")


def test_a_pair_that_continues_another_file_is_damage(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 3, per_file=2)
    segments = segments_of(tmp_path)
    vouch(tmp_path, [segments[0]._replace(root=9), *segments[1:]])
    assert damage_of(tmp_path).startswith(
        "damaged: rank-00000.001.index, byte 0: it does not continue the file before it"
    )


def test_a_line_of_damage_cannot_steer_a_terminal() -> None:
    line = BadStream("cut", "x\x1b[2J", 0, "two\nlines", 1).line
    assert line == "cut: x\\x1b[2J, byte 0: two\\nlines"
