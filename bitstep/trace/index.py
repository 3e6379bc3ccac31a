"""The index of a trace file: which bytes of the stream are whole, step by step.

1. `FileName` is the name of a pair of files: process, rotation.
2. A header says what the file is and ties it to the rotation before it.
3. One entry per step, then an end marker; each carries a checksum over all before it, so that
   an index proves itself and two long runs are compared by their indexes alone.
4. `load_index` gives every entry up to the first that is not right, and says what is wrong there.

>>> FileName(process=3, rotation=0).index
'rank-00003.000.index'
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from bitstep.errors import TraceError
from bitstep.trace.schema import DEFINITION, FORMAT, check_version

MAGIC: Final = b"bitstep\x00"
CLOSED: Final = -1
"""Step of the end marker of a stream's last file."""
CONTINUED: Final = -2
"""Step of the end marker of a file that the next rotation continues."""
MAX_STEP_BYTES: Final = 1 << 28
"""Bytes of one step in a stream, at most: a reader allocates no more than this at a time."""

NO_CHAIN: Final = bytes(8)
_HEADER: Final = struct.Struct("<8s4I16s8s")
_FIELDS: Final = struct.Struct("<qQQQ8s")
_SUM_BYTES: Final = 8
_NAME: Final = re.compile(r"rank-(\d{5,})\.(\d{3,})\.(arrows|index)", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class FileName:
    """The name of a stream and its index: `rank-<process>.<rotation>`."""

    process: int
    rotation: int

    def __str__(self) -> str:
        return f"rank-{self.process:05d}.{self.rotation:03d}"

    @property
    def stream(self) -> str:
        return f"{self}.arrows"

    @property
    def index(self) -> str:
        return f"{self}.index"

    @staticmethod
    def parse(name: str) -> FileName | None:
        """The pair that `name` belongs to; None if no writer would give a file this name."""
        match = _NAME.fullmatch(name)
        parsed = FileName(int(match[1]), int(match[2])) if match else None
        # "rank-000000.000" also matches; only the one way to write a number is a name.
        return parsed if parsed and name in (parsed.stream, parsed.index) else None


class IndexEntry(NamedTuple):
    """One step of a file, or its end marker (step CLOSED or CONTINUED)."""

    step: int
    rows: int
    root: int
    """Root of the step, an unsigned 64-bit number; 0 in an end marker."""
    end: int
    """Byte of the stream where this step ends; it begins where the one before ended."""
    bytes_sum: bytes
    """Checksum of those bytes, 8 bytes."""
    chain: bytes
    """Checksum of the chain before and of the fields above, 8 bytes."""


@dataclass(frozen=True, slots=True)
class Index:
    """What an index vouches for: `entries` up to `problem`, the first thing that is not right."""

    name: FileName
    entries: tuple[IndexEntry, ...]
    """With the end marker, if there is one."""
    chain: bytes
    """Of the last good entry, or of the header."""
    problem: str | None

    @property
    def end(self) -> int | None:
        """CLOSED, CONTINUED, or None for a file without an end marker."""
        last = self.entries[-1].step if self.entries else 0
        return last if last < 0 else None


def checksum(*pieces: bytes) -> bytes:
    """BLAKE2b with a digest of 8 bytes: in the standard library, at 1 GB/s and more."""
    digest = hashlib.blake2b(digest_size=_SUM_BYTES)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def pack_header(name: FileName, previous: bytes) -> tuple[bytes, bytes]:
    """The bytes of a header, and the chain that begins with it. `previous`: the chain of the
    rotation before, or NO_CHAIN."""
    definition = DEFINITION.encode("ascii")
    fields = _HEADER.pack(MAGIC, FORMAT, name.process, name.rotation, 0, definition, previous)
    chain = checksum(fields)
    return fields + chain, chain


def pack_entry(
    chain: bytes, step: int, rows: int, root: int, end: int, raw: bytes
) -> tuple[bytes, bytes]:
    """The bytes of an entry that vouches for `raw`, and the chain after it."""
    fields = _FIELDS.pack(step, rows, root, end, checksum(raw))
    chain = checksum(chain, fields)
    return fields + chain, chain


def open_plain(path: Path) -> BinaryIO | None:
    """Open a file to read; None if there is none. Raises TraceError for a link or a device.

    A link could lead out of the folder, and opening a pipe would wait for ever.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = "is a link" if error.errno == errno.ELOOP else f"cannot be opened: {error}"
        raise TraceError(f"{path}: {reason}: a trace holds plain files only") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise TraceError(f"{path}: is not a plain file: a trace holds plain files only")
    return os.fdopen(descriptor, "rb")


def load_index(path: Path, name: FileName, previous: bytes | None) -> Index:
    """Every entry of an index that is right, without reading the stream.

    `previous` is the chain of the rotation before, or None not to compare it. Raises TraceError
    for another format version or definition, and for a link; anything else is a `problem`.
    """
    file = open_plain(path)
    if file is None:
        return Index(name, (), NO_CHAIN, f"cut: {name.index}: the index is missing")
    with file:
        header = file.read(_HEADER.size + _SUM_BYTES)
        problem = _header_problem(path, header, name, previous)
        if problem:
            return Index(name, (), NO_CHAIN, problem)
        return _load_entries(file, name, header[-_SUM_BYTES:])


def read_index(path: Path) -> tuple[IndexEntry, ...]:
    """The entries of one index file that are right, the end marker last if there is one.

    No end marker: the file was cut or is damaged, and `read_trace` says which. Raises TraceError
    for a name that is not an index's, a missing file, another format, another definition, a link.
    """
    name = FileName.parse(path.name)
    if name is None or path.name != name.index:
        raise TraceError(f"{path}: not the name of an index (rank-00000.000.index)")
    if not path.exists():
        raise TraceError(f"{path}: no such index")
    return load_index(path, name, None).entries


def _header_problem(path: Path, raw: bytes, name: FileName, previous: bytes | None) -> str | None:
    """What is wrong with a header, or None."""
    where = f"{name.index}, byte 0"
    if len(raw) < _HEADER.size + _SUM_BYTES:
        return f"cut: {name.index}, byte {len(raw)}: the header is not whole"
    fields, chain = raw[: _HEADER.size], raw[_HEADER.size :]
    # The checksum first: a flipped bit must not pass for another format.
    if not fields.startswith(MAGIC) or checksum(fields) != chain:
        return f"damaged: {where}: this is no header of a bitstep index"
    _, version, process, rotation, _, definition, before = _HEADER.unpack(fields)
    check_version(str(path), version, definition.rstrip(b"\0").decode("ascii", "replace"))
    if FileName(process, rotation) != name:
        return f"damaged: {where}: written as {FileName(process, rotation).index}, and renamed"
    if previous is not None and before != previous:
        return f"damaged: {where}: it does not continue the file before it"
    return None


def _load_entries(file: BinaryIO, name: FileName, chain: bytes) -> Index:
    size = _FIELDS.size + _SUM_BYTES
    entries: list[IndexEntry] = []
    offset = file.tell()
    # One entry at a time: a sparse file of any size stops at its first zero entry.
    while raw := file.read(size):
        problem = _entry_problem(raw, chain, entries)
        if problem:
            return Index(
                name,
                tuple(entries),
                chain,
                f"{problem[0]}: {name.index}, byte {offset}: {problem[1]}",
            )
        step, rows, root, end, bytes_sum = _FIELDS.unpack(raw[: _FIELDS.size])
        entries.append(IndexEntry(step, rows, root, end, bytes_sum, raw[_FIELDS.size :]))
        chain, offset = entries[-1].chain, offset + size
    cut = (
        None
        if entries and entries[-1].step < 0
        else (f"cut: {name.index}, byte {offset}: no end marker after {len(entries)} steps")
    )
    return Index(name, tuple(entries), chain, cut)


def _entry_problem(raw: bytes, chain: bytes, entries: list[IndexEntry]) -> tuple[str, str] | None:
    """("cut" or "damaged", the reason) for an entry that is not right, or None."""
    if entries and entries[-1].step < 0:
        return "damaged", "something follows the end marker"
    if len(raw) < _FIELDS.size + _SUM_BYTES:
        return "cut", f"the entry after {len(entries)} steps is not whole"
    if checksum(chain, raw[: _FIELDS.size]) != raw[_FIELDS.size :]:
        return "damaged", f"the entry after {len(entries)} steps fails its checksum"
    step, rows, root, end, _ = _FIELDS.unpack(raw[: _FIELDS.size])
    start = entries[-1].end if entries else 0
    if not start < end <= start + MAX_STEP_BYTES:
        return "damaged", f"a step of bytes {start} to {end} of the stream"
    if rows > end - start:
        return "damaged", f"{rows} rows in {end - start} bytes"
    if step < 0 and (step not in (CLOSED, CONTINUED) or rows or root):
        return "damaged", f"an end marker with step {step}, {rows} rows and root {root:016x}"
    if 0 <= step <= (entries[-1].step if entries else -1):
        return "damaged", f"step {step} after step {entries[-1].step}"
    return None
