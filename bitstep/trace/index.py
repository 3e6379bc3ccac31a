"""The index of a trace file: which bytes of the stream are whole, step by step.

1. `FileName` is the name of a pair of files: process, rotation; `folder` keeps folders small.
2. A header says what the file is and ties it to the rotation before it.
3. One entry per step, then an end marker. Each carries its chain, a checksum of the whole file
   up to there: the last one proves all, and each proves what a crash left.

`IndexBytes` makes those bytes; `bitstep.trace.load` reads them.

>>> FileName(process=3, rotation=0).index, FileName(process=2431, rotation=0).index
('rank-00003.000.index', 'ranks-00002/rank-02431.000.index')
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from bitstep.trace.schema import DEFINITION, FORMAT

MAGIC: Final = b"bitstep\x00"
CLOSED: Final = -1
"""Step of the end marker of a stream's last file."""
CONTINUED: Final = -2
"""Step of the end marker of a file that the next rotation continues."""
MAX_STEP_BYTES: Final = 1 << 28
"""Bytes of one step in a stream, at most: a reader allocates no more than this at a time."""
PROCESSES_PER_FOLDER: Final = 1000
"""A folder of more files than some thousands is slow to list, and network file systems dislike it."""  # noqa: E501

NO_CHAIN: Final = 0
HEADER: Final = struct.Struct("<8s4I16sQQ")
"""Magic, format, process, rotation, 0, definition, chain of the rotation before, chain."""
ENTRY: Final = np.dtype(
    [
        ("step", "<i8"),
        ("rows", "<u4"),
        ("dictionaries", "<u4"),
        ("root", "<u8"),
        ("end", "<u8"),
        ("bytes_sum", "<u8"),
        ("chain", "<u8"),
    ]
)
SUM_BYTES: Final = 8
Entries = npt.NDArray[np.void]
"""Entries of an index as an array of dtype ENTRY: a field is `entries["step"]`."""

_ENTRY: Final = struct.Struct("<qIIQQQ")
_NAME: Final = re.compile(r"(?:ranks-\d{5,}/)?rank-(\d{5,})\.(\d{3,})\.(?:arrows|index)", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class FileName:
    """The name of a stream and its index: `rank-<process>.<rotation>`."""

    process: int
    rotation: int

    @property
    def folder(self) -> str:
        """Below the directory of the trace: empty, or "ranks-00002/" for processes 2000 to 2999."""
        number = self.process // PROCESSES_PER_FOLDER
        return f"ranks-{number:05d}/" if number else ""

    def __str__(self) -> str:
        return f"{self.folder}rank-{self.process:05d}.{self.rotation:03d}"

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
        # "rank-000000.000" also matches; only the one way to write a number, in the one folder,
        # is a name.
        return parsed if parsed and name in (parsed.stream, parsed.index) else None


class IndexEntry(NamedTuple):
    """One step of a file, or its end marker (step CLOSED or CONTINUED)."""

    step: int
    rows: int
    dictionaries: int
    """Dictionary messages in the bytes of the step: a reader may skip a step that has none."""
    root: int
    """Root of the step, an unsigned 64-bit number; 0 in an end marker."""
    end: int
    """Byte of the stream where this step ends; it begins where the one before ended."""
    bytes_sum: int
    """Checksum of those bytes."""
    chain: int
    """Checksum of the index up to here."""


def checksum(*pieces: bytes) -> int:
    """BLAKE2b with a digest of 8 bytes: in the standard library, at 1 GB/s and more."""
    digest = _blake()
    for piece in pieces:
        digest.update(piece)
    return number(digest.digest())


def number(raw: bytes) -> int:
    return int.from_bytes(raw, "little")


class IndexBytes:
    """The bytes of one index, piece by piece, each to be written after what it vouches for."""

    def __init__(self, name: FileName, previous: int) -> None:
        """`previous`: the chain of the rotation before, or NO_CHAIN."""
        definition = DEFINITION.encode("ascii")
        fields = (MAGIC, FORMAT, name.process, name.rotation, 0, definition, previous)
        self._before = _blake()
        self.header = self._chained(HEADER.pack(*fields, 0)[:-SUM_BYTES])

    def entry(
        self, step: int, rows: int, dictionaries: int, root: int, end: int, bytes_sum: int
    ) -> bytes:
        """The bytes of an `IndexEntry` with these fields."""
        return self._chained(_ENTRY.pack(step, rows, dictionaries, root, end, bytes_sum))

    def _chained(self, fields: bytes) -> bytes:
        self._before.update(fields)
        chain: bytes = self._before.digest()
        self._before.update(chain)
        self.chain = number(chain)
        return fields + chain


class Proof:
    """The other way: which bytes of an index are proven by the chains in them.

    A chain covers every byte before it, other chains included, so that one checksum of the file
    proves all entries at once; one at a time is for files that fail.
    """

    def __init__(self, header: bytes) -> None:
        self._before = _blake(header)

    def holds(self, raw: bytes | memoryview) -> bool:
        """Whether `raw`, which follows what was proven so far, is proven by its last 8 bytes.
        Only then does what follows go on from there."""
        after = self._before.copy()
        after.update(raw[:-SUM_BYTES])
        if after.digest() != raw[-SUM_BYTES:]:
            return False
        after.update(raw[-SUM_BYTES:])
        self._before = after
        return True


def _blake(raw: bytes = b"") -> Any:
    return hashlib.blake2b(raw, digest_size=SUM_BYTES)
