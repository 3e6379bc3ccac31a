"""Frames of Arrow messages that do not hold together are named, one case per sentence."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from trace_cases import arrow_segments, one_row

from bitstep.errors import TraceError
from bitstep.trace.frames import BATCH, DICTIONARY, END, SCHEMA, check_frames
from bitstep.trace.schema import SCHEMA as COLUMNS

FIRST, LAST = arrow_segments(COLUMNS, one_row())


def message(kind: int, body: int, *, header: bool = True, data: bool = True) -> bytes:
    """A message made by hand: a table of (kind, header, body), a header table with a data table."""
    at = {"vtable": 4, "table": 16, "header": 40, "data": 56}
    raw = bytearray(72)
    struct.pack_into("<I", raw, 0, at["table"])
    # Table of offsets: its bytes, the table's bytes, then version, kind, header, body.
    offsets = (12, 24, 0, 4, 8 if header else 0, 12)
    struct.pack_into("<6H", raw, at["vtable"], *offsets)
    struct.pack_into("<iB3xIq", raw, at["table"], at["table"] - at["vtable"], kind, 20, body)
    # The header's own table of offsets lies behind it.
    struct.pack_into("<i", raw, at["header"], at["header"] - 64)
    struct.pack_into("<4H", raw, 64, 8, 8, 0, 4 if data else 0)
    struct.pack_into("<I", raw, at["header"] + 4, at["data"] - at["header"] - 4)
    struct.pack_into("<i", raw, at["data"], at["data"] - 64)
    return b"\xff\xff\xff\xff" + struct.pack("<i", len(raw)) + bytes(raw)


def test_kinds_of_messages_are_told() -> None:
    assert check_frames(FIRST) == [SCHEMA, *[DICTIONARY] * 7, BATCH]
    assert check_frames(LAST) == [END]
    assert check_frames(b"") == []


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\0" * 16, "no Arrow message 0 bytes into the step"),
        (b"\xff\xff\xff\xff" + struct.pack("<i", -8) + b"\0" * 8, "no Arrow message 0 bytes"),
        (FIRST + b"\xff\xff\xff\xff", "points outside of itself"),
        (b"\xff\xff\xff\xff" + struct.pack("<iI", 8, 2**31), "points outside of itself"),
        (b"\xff\xff\xff\xff" + struct.pack("<iIi", 8, 4, 100), "points outside of itself: offset"),
        (FIRST[:-8], "the last Arrow message of the step lacks 8 bytes"),
        (message(5, -1), "an Arrow message of kind 5 with a body of -1 bytes"),
        (message(1, 0, header=False), "an Arrow message of kind 1 with a body of 0 bytes"),
        (message(2, 0, data=False), "an Arrow dictionary without data"),
    ],
)
def test_a_frame_that_does_not_hold_together_is_named(raw: bytes, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        check_frames(raw)


def test_the_message_made_by_hand_is_right_but_for_what_a_case_changes() -> None:
    assert check_frames(message(1, 0)) == [1]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compression_is_seen_in_batches_and_dictionaries(codec: str) -> None:
    segment, _ = arrow_segments(COLUMNS, one_row(module="x" * 500), compression=codec)
    with pytest.raises(TraceError, match="a compressed Arrow message"):
        check_frames(segment)
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(["y" * 500]))
    schema = pa.schema([pa.field("only", dictionary.type)])
    batch = pa.RecordBatch.from_arrays([dictionary], schema=schema)
    with pytest.raises(TraceError, match="a compressed Arrow message"):
        check_frames(arrow_segments(schema, batch, compression=codec)[0])
