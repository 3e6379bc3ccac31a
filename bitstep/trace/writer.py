"""Write the trace of one process: a stream of Arrow batches, one per step, and its index.

1. `write` buffers records, or a recorder fills `Columns`; nothing is encoded while the step runs.
2. `end_step` (`end_step_columns`) makes one batch of them, hands its bytes to the operating
   system, and only then vouches for them in the index. A process that is killed loses at most the
   step it was in.
3. After `steps_per_file` steps the next file begins, chained to the one before.
4. `close` writes the end marker; a file without one was cut.

    with TraceWriter(run / "attempt-000", process=0) as trace:
        trace.write(records)
        trace.end_step(1, root)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from bitstep.errors import TraceError
from bitstep.records import Record
from bitstep.trace.columns import Columns
from bitstep.trace.files import create_new, make_folder, write_whole
from bitstep.trace.index import (
    CLOSED,
    CONTINUED,
    MAX_STEP_BYTES,
    NO_CHAIN,
    FileName,
    IndexBytes,
    checksum,
)
from bitstep.trace.rows import Words, check_batch, encode
from bitstep.trace.schema import SCHEMA

# Deltas keep every string once; without them Arrow writes the whole dictionary again.
_PIECES = 1 << 16
_OPTIONS = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)


class TraceWriter:
    """The trace of `process`, in `directory` (made if missing).

    Every method raises TraceError, naming the file, when it cannot write; after that the writer
    is dead and the file ends with the last whole step. Not for use by two threads.
    """

    def __init__(self, directory: Path, process: int, steps_per_file: int = 1000) -> None:
        if not 0 <= process < 2**32 or steps_per_file < 1:
            raise TraceError(f"process {process} with {steps_per_file} steps per file: both count")
        self._directory = directory
        self._per_file = steps_per_file
        self._rows: list[Record] = []
        self._seq = self._step = -1
        self._dead = False
        self._before = 0
        """Bytes in the files before this one."""
        first = FileName(process, 0)
        make_folder(directory, first.folder)
        for taken in directory.glob(f"{first.folder}rank-{process:05d}.*"):
            raise TraceError(f"{taken}: exists already: write to a new directory")
        self._file = _PairOfFiles(directory, first, NO_CHAIN)

    @property
    def written(self) -> int:
        """Bytes of rows in the files of this process so far."""
        return self._before + self._file.end

    def write(self, records: Sequence[Record]) -> None:
        """Keep the records of the step that runs; `end_step` writes them."""
        self._rows.extend(records)

    def end_step(self, step: int, root: int) -> None:
        """Write one batch: all records since the last call, which must be of `step`, in order.

        `root` is an unsigned 64-bit number. Steps increase; they need not be without gaps.
        """
        self._end_step(self._rows, step, root)
        self._rows.clear()

    def end_step_columns(self, step: int, root: int, columns: Columns) -> None:
        """Write one batch: the rows of `columns`, which are then cleared. Where this raises, they
        are kept."""
        if self._rows:
            raise TraceError(
                f"{self._file.path}: {len(self._rows)} records and a step of columns: a step is "
                "ended by end_step or by end_step_columns, not by both"
            )
        self._end_step(columns, step, root)
        columns.clear()

    def close(self) -> None:
        """Write the end marker and close. Again: nothing. Raises TraceError if records of a step
        wait that was not ended; the file is then closed without its marker."""
        if self._dead:
            return
        waiting = len(self._rows)
        try:
            if waiting:
                raise TraceError(
                    f"{self._file.path}: {waiting} records after step {self._step} belong to no "
                    "step: call end_step before close"
                )
            self._file.finish(CLOSED)
        finally:
            self._kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; after an exception without the end marker, because the run did not end well."""
        if kind is None:
            self.close()
        else:
            self._kill()

    def _end_step(self, rows: Sequence[Record] | Columns, step: int, root: int) -> None:
        if self._dead:
            raise TraceError(f"{self._file.path}: closed: a step cannot be added to it")
        try:
            self._check(step, root)
            if self._file.steps == self._per_file:
                self._rotate()
            self._seq = self._file.append(rows, step, root, self._seq)
        except BaseException:
            self._kill()
            raise
        self._step = step

    def _check(self, step: int, root: int) -> None:
        where = self._file.path
        if not max(self._step, -1) < step < 2**63:
            raise TraceError(f"{where}: step {step} after step {self._step}: steps must increase")
        if not 0 <= root < 2**64:
            raise TraceError(
                f"{where}: root {root} of step {step} is not an unsigned 64-bit number"
            )

    def _rotate(self) -> None:
        self._file.finish(CONTINUED)
        self._before += self._file.end
        name = FileName(self._file.name.process, self._file.name.rotation + 1)
        self._file = _PairOfFiles(self._directory, name, self._file.entries.chain)

    def _kill(self) -> None:
        self._dead = True
        self._rows.clear()
        self._file.drop()


class _PairOfFiles:
    """One stream and its index, new on disk."""

    def __init__(self, directory: Path, name: FileName, previous: int) -> None:
        self.name = name
        self.path = directory / name.stream
        self.steps = 0
        self._index_path = directory / name.index
        self.end = 0
        self._words = Words()
        self._bytes = _Bytes()
        # Arrow writes a batch in some forty pieces: they are put together before Python sees them.
        self._pieces = pa.BufferedOutputStream(pa.PythonFile(self._bytes, mode="w"), _PIECES)
        self._arrow = pa.ipc.new_stream(self._pieces, SCHEMA, options=_OPTIONS)
        self._stream = create_new(self.path)
        try:
            self._index = create_new(self._index_path)
        except TraceError:
            os.close(self._stream)
            self.path.unlink()
            raise
        self.entries = IndexBytes(name, previous)
        write_whole(self._index, self.entries.header, self._index_path)

    def append(self, rows: Sequence[Record] | Columns, step: int, root: int, seq: int) -> int:
        """Write one step whose rows come after `seq`; gives back the last seq."""
        try:
            if isinstance(rows, Columns):
                batch = rows.encode(step, self._words)
                seq = check_batch(batch, step, len(rows), seq, rows.passed)
            else:
                seq = check_batch(batch := encode(rows, self._words), step, len(rows), seq)
        except TraceError as error:
            raise TraceError(f"{self.path}: step {step}: {error}") from error
        before = self._arrow.stats.num_dictionary_batches
        self._arrow.write_batch(batch)
        self._vouch(step, len(rows), root, self._arrow.stats.num_dictionary_batches - before)
        self.steps += 1
        return seq

    def finish(self, marker: int) -> None:
        """Write Arrow's end of stream, vouch for it with an end marker, and close."""
        self._arrow.close()
        self._vouch(marker, 0, 0, 0)
        self.drop()

    def drop(self) -> None:
        """Close both files as they are."""
        for descriptor in (self._stream, self._index):
            if descriptor >= 0:
                os.close(descriptor)
        self._stream = self._index = -1

    def _vouch(self, step: int, rows: int, root: int, dictionaries: int) -> None:
        self._pieces.flush()
        raw = self._bytes.take()
        if len(raw) > MAX_STEP_BYTES:
            raise TraceError(
                f"{self.path}: step {step} has {len(raw)} bytes, the most is "
                f"{MAX_STEP_BYTES}: record at a lower level"
            )
        write_whole(self._stream, raw, self.path)
        self.end += len(raw)
        entry = self.entries.entry(step, rows, dictionaries, root, self.end, checksum(raw))
        # Last: after a kill the index must never vouch for bytes that were not written.
        write_whole(self._index, entry, self._index_path)


class _Bytes:
    """A file for Arrow to write to, which keeps what it gets until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, piece: bytes) -> int:
        self._pieces.append(bytes(piece))
        return len(piece)

    def take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken

    def flush(self) -> None:
        """Arrow calls it; there is nothing to do."""

    def close(self) -> None:
        """The same."""
