"""Read the batches of one stream, of which Arrow sees only bytes that the index vouches for.

1. Take the bytes of the next index entry: bounded, whole, and with the right checksum.
2. Let Arrow read one batch from them; it must use all of them and ask for no more.
3. Check the batch (`check_batch`), then hand it on.

Arrow itself does not notice a flipped bit, and may crash on it (docs/trace-format.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from bitstep.errors import TraceError, printable
from bitstep.trace.frames import check_frames
from bitstep.trace.index import Index, IndexEntry, checksum, open_plain
from bitstep.trace.rows import check_batch
from bitstep.trace.schema import FORMAT, SCHEMA, check_version

# ValueError: bytes that are no UTF-8. MemoryError is Arrow's for a size that cannot be had.
_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, MemoryError)


class BadStream(Exception):
    """Where a stream stops being right; `line` is a line of `Trace.damage`."""

    def __init__(self, kind: str, name: str, byte: int, reason: str) -> None:
        # Arrow quotes what it finds in the file; it must not steer a terminal.
        self.line = printable(f"{kind}: {name}, byte {byte}: {reason}")
        super().__init__(self.line)


class _Vouched:
    """A file for Arrow to read, which holds one step's bytes and ends after them."""

    closed = False

    def __init__(self) -> None:
        self._bytes = memoryview(b"")

    def give(self, raw: bytes) -> None:
        self._bytes = memoryview(raw)

    @property
    def left(self) -> int:
        return len(self._bytes)

    def read(self, size: int) -> bytes:
        # A size that lies gets what there is: nothing is allocated by what a file claims.
        taken, self._bytes = self._bytes[:size], self._bytes[size:]
        return bytes(taken)


def whole_batches(directory: Path, index: Index, seq: int) -> Iterator[Any]:
    """The batches that `index` vouches for, checked; `seq` is the last one before this file.

    Raises BadStream where the stream stops being right, and TraceError for another format
    version, another definition or other columns.
    """
    name = index.name.stream
    file = open_plain(directory / name)
    if file is None:
        raise BadStream("cut", name, 0, "the stream is missing")
    with file:
        size = os.fstat(file.fileno()).st_size
        vouched = _Vouched()
        arrow = None
        start = 0
        for entry in index.entries:
            raw = _segment(file, name, start, size, entry)
            with _damaged(name, start):
                check_frames(raw)
            vouched.give(raw)
            if arrow is None:
                arrow = _open(vouched, directory / name)
            with _damaged(name, start):
                batch = _next_batch(arrow, vouched, entry)
                if batch is not None:
                    seq = check_batch(batch, entry.step, entry.rows, seq)
            if batch is not None:
                yield batch
            start = entry.end
    if size > start and index.end is not None:
        raise BadStream("damaged", name, start, f"{size - start} bytes after the end")


@contextmanager
def _damaged(name: str, start: int) -> Iterator[None]:
    """Turn a TraceError about the bytes from `start` on into BadStream."""
    try:
        yield
    except TraceError as error:
        raise BadStream("damaged", name, start, str(error)) from error


def _segment(file: BinaryIO, name: str, start: int, size: int, entry: IndexEntry) -> bytes:
    """The bytes of one entry. `load_index` has bounded their number (MAX_STEP_BYTES)."""
    if entry.end > size:
        raise BadStream("cut", name, size, f"a step ends at byte {entry.end}, the file here")
    raw = file.read(entry.end - start)
    if checksum(raw) != entry.bytes_sum:
        what = "the end of the stream" if entry.step < 0 else f"step {entry.step}"
        raise BadStream("damaged", name, start, f"{what} fails its checksum")
    return raw


def _open(vouched: _Vouched, path: Path) -> Any:
    try:
        arrow = pa.ipc.open_stream(vouched)
        metadata = arrow.schema.metadata or {}
        odd = [f"{field.name}: {field.type}" for field in arrow.schema if field not in list(SCHEMA)]
    except _ARROW_ERRORS as error:
        raise BadStream("damaged", path.name, 0, f"no Arrow schema: {error}") from error
    version = metadata.get(b"bitstep.format", b"none").decode("utf-8", "replace")
    definition = metadata.get(b"bitstep.definition", b"none").decode("utf-8", "replace")
    check_version(str(path), FORMAT if version == str(FORMAT) else version, definition)
    if not arrow.schema.equals(SCHEMA):
        columns = printable(", ".join(odd)) or "missing or in another order"
        raise TraceError(
            f"{path}: not the columns of trace format {FORMAT} ({columns}): "
            "it was not written by bitstep"
        )
    return arrow


def _next_batch(arrow: Any, vouched: _Vouched, entry: IndexEntry) -> Any:
    """The one batch of an entry, or None at the end marker."""
    try:
        batch = arrow.read_next_batch()
    except StopIteration:
        batch = None
    except _ARROW_ERRORS as error:
        raise TraceError(f"Arrow cannot read it: {error}") from error
    if vouched.left or (batch is None) != (entry.step < 0):
        raise TraceError(f"the index names step {entry.step}, the bytes hold something else")
    return batch
