"""Read the batches of one stream, of which Arrow sees only bytes that the index vouches for.

1. Take the bytes of the next index entry: bounded, whole, and with the right checksum.
2. Let Arrow read one batch from them; it must use all of them and ask for no more.
3. Check the batch (`check_batch`), then hand it on.
4. Steps that nobody asked for are not read, but for those whose bytes bring words: the first of
   a file, and those with dictionaries.

Arrow itself does not notice a flipped bit, and may crash on it (docs/trace-format.md).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from bitstep.errors import TraceError, printable
from bitstep.trace import frames
from bitstep.trace.files import open_plain
from bitstep.trace.frames import check_frames
from bitstep.trace.index import CLOSED, IndexEntry, checksum
from bitstep.trace.load import Index
from bitstep.trace.rows import check_batch
from bitstep.trace.schema import FORMAT, SCHEMA, check_version

# ValueError: bytes that are no UTF-8. MemoryError is Arrow's for a size that cannot be had.
_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, MemoryError)


class BadStream(Exception):
    """Where a stream stops being right: `line` is a line of `Trace.damage`, `step` the step whose
    bytes are not right; below 0: those at the end of a file."""

    def __init__(self, kind: str, name: str, byte: int, reason: str, step: int) -> None:
        self.step = step
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


def whole_batches(
    directory: Path, index: Index, seq: int, wanted: Collection[int] | None = None
) -> Iterator[tuple[IndexEntry, Any]]:
    """The batches that `index` vouches for, checked, of all steps or of those in `wanted`.

    `seq` is the last one before this file. Raises BadStream where the stream stops being right,
    and TraceError for another format version, another definition or other columns.
    """
    name = index.name.stream
    file = open_plain(directory / name)
    if file is None:
        raise BadStream("cut", name, 0, "the stream is missing", int(index.entries["step"][0]))
    with file:
        size = os.fstat(file.fileno()).st_size
        vouched = _Vouched()
        arrow = None
        start = 0
        for start, entry in _needed(index, wanted):
            raw = _segment(file, name, start, size, entry)
            with _damaged(name, start, entry.step):
                _check_kinds(check_frames(raw), entry, first=start == 0)
            vouched.give(raw)
            if arrow is None:
                arrow = _open(vouched, directory, name, entry.step)
            with _damaged(name, start, entry.step):
                batch = _next_batch(arrow, vouched, entry)
                if batch is not None:
                    # Also where nobody asked for the step: its words are those of later ones.
                    seq = check_batch(batch, entry.step, entry.rows, seq)
            if batch is not None and (wanted is None or entry.step in wanted):
                yield entry, batch
            start = entry.end
    if wanted is None and size > start and index.end is not None:
        raise BadStream("damaged", name, start, f"{size - start} bytes after the end", CLOSED)


def _needed(index: Index, wanted: Collection[int] | None) -> Iterator[tuple[int, IndexEntry]]:
    """The entries to be read, each with the byte where it begins."""
    entries = index.entries
    starts = np.concatenate(([np.uint64(0)], entries["end"][:-1]))[: len(entries)]
    if wanted is not None:
        asked = np.isin(entries["step"], np.fromiter(wanted, np.int64, len(wanted)))
        needed = asked | (entries["dictionaries"] > 0)
        needed[:1] = True
        needed &= np.arange(len(entries)) <= np.max(np.nonzero(asked), initial=-1)
        entries, starts = entries[needed], starts[needed]
    return zip(starts.tolist(), map(IndexEntry._make, entries.tolist()), strict=True)


def _check_kinds(kinds: list[int], entry: IndexEntry, *, first: bool) -> None:
    """Raise TraceError unless the bytes of a step hold one batch and the dictionaries that the
    index says: a reader may have passed over bytes because of that."""
    before = [frames.SCHEMA] * first + [frames.DICTIONARY] * entry.dictionaries
    if kinds != [*before, frames.END if entry.step < 0 else frames.BATCH]:
        raise TraceError(
            f"the index names step {entry.step} with {entry.dictionaries} dictionaries, the bytes "
            f"hold something else: messages of kinds {', '.join(map(str, kinds[:20]))}"
        )


@contextmanager
def _damaged(name: str, start: int, step: int) -> Iterator[None]:
    """Turn a TraceError about the bytes from `start` on into BadStream."""
    try:
        yield
    except TraceError as error:
        raise BadStream("damaged", name, start, str(error), step) from error


def too_short(name: str, size: int, entry: IndexEntry) -> BadStream:
    """The stream has `size` bytes, and so not all of those of `entry`."""
    reason = f"a step ends at byte {entry.end}, the file here"
    return BadStream("cut", name, size, reason, entry.step)


def _segment(file: BinaryIO, name: str, start: int, size: int, entry: IndexEntry) -> bytes:
    """The bytes of one entry. `load_index` has bounded their number (MAX_STEP_BYTES)."""
    if entry.end > size:
        raise too_short(name, size, entry)
    file.seek(start)
    raw = file.read(entry.end - start)
    if checksum(raw) != entry.bytes_sum:
        what = "the end of the stream" if entry.step < 0 else f"step {entry.step}"
        raise BadStream("damaged", name, start, f"{what} fails its checksum", entry.step)
    return raw


def _open(vouched: _Vouched, directory: Path, name: str, step: int) -> Any:
    path = directory / name
    try:
        arrow = pa.ipc.open_stream(vouched)
        metadata = arrow.schema.metadata or {}
        odd = [f"{field.name}: {field.type}" for field in arrow.schema if field not in list(SCHEMA)]
    except _ARROW_ERRORS as error:
        raise BadStream("damaged", name, 0, f"no Arrow schema: {error}", step) from error
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
