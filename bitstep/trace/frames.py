"""The frame of an Arrow message, read by hand for what Arrow does not let us ask.

1. A step's bytes are messages: ff ff ff ff, length of the metadata, metadata, body.
2. The metadata is a flatbuffer; a table's fields are found through its table of offsets.
3. A compressed body is refused before Arrow sees it: it claims its own size, of which Arrow
   allocates all, and 200 MB can claim 200 GB. Our writer never compresses.
4. What kinds of messages there are decides whether a reader may skip them.

>>> import pyarrow as pa
>>> check_frames(pa.ipc.read_message(pa.schema([]).serialize()).serialize().to_pybytes())
[1]
"""

from __future__ import annotations

import struct
from typing import Final

from bitstep.errors import TraceError

_CONTINUATION: Final = b"\xff\xff\xff\xff"
END: Final = -1
SCHEMA: Final = 1
DICTIONARY: Final = 2
BATCH: Final = 3


def check_frames(raw: bytes) -> list[int]:
    """The kinds of the messages of `raw` (END: the end of the stream). Raises TraceError unless
    it is a row of whole, uncompressed Arrow messages."""
    at, kinds = 0, []
    try:
        while at < len(raw):
            size = _int(raw, "<i", at + 4)
            if raw[at : at + 4] != _CONTINUATION or size < 0:
                raise TraceError(f"no Arrow message {at} bytes into the step")
            at += 8
            kind, body = _check_message(raw[at : at + size]) if size else (END, 0)
            kinds.append(kind)
            at += size + body
    except struct.error as error:
        raise TraceError(f"an Arrow message that points outside of itself: {error}") from error
    if at != len(raw):
        raise TraceError(f"the last Arrow message of the step lacks {at - len(raw)} bytes")
    return kinds


def _check_message(metadata: bytes) -> tuple[int, int]:
    """Kind of a message, and bytes of the body that follows its metadata."""
    message = _int(metadata, "<I", 0)
    kind_at, header, body_at = (_field(metadata, message, slot) for slot in (1, 2, 3))
    kind = _int(metadata, "<B", kind_at) if kind_at else 0
    body = _int(metadata, "<q", body_at) if body_at else 0
    if body < 0 or not header:
        raise TraceError(f"an Arrow message of kind {kind} with a body of {body} bytes")
    if kind in (DICTIONARY, BATCH):
        batch = _follow(metadata, header)
        if kind == DICTIONARY:
            data = _field(metadata, batch, 1)
            if not data:
                raise TraceError("an Arrow dictionary without data")
            batch = _follow(metadata, data)
        if _field(metadata, batch, 3):
            raise TraceError("a compressed Arrow message: a trace is never compressed")
    return kind, body


def _field(raw: bytes, table: int, slot: int) -> int:
    """Where field `slot` of a flatbuffer table lies, or 0 if it is absent."""
    offsets = table - _int(raw, "<i", table)
    entry = 4 + 2 * slot
    if entry >= _int(raw, "<H", offsets):
        return 0
    offset = _int(raw, "<H", offsets + entry)
    return table + offset if offset else 0


def _follow(raw: bytes, at: int) -> int:
    return at + _int(raw, "<I", at)


def _int(raw: bytes, form: str, at: int) -> int:
    # Python would count a negative offset from the end.
    if at < 0:
        raise struct.error(f"offset {at}")
    number: int = struct.unpack_from(form, raw, at)[0]
    return number
