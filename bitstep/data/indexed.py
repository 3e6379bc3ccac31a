"""Megatron's indexed datasets: PREFIX.bin holds tokens and PREFIX.idx says where each sequence is.

1. Both files are opened without following a link and mapped read-only; nothing is copied.
2. The header of the .idx is checked, then that its size is what the header says, then its arrays:
   every sequence begins where the one before it ends, the last one at the end of the .bin.
3. A sequence is a view of the mapped .bin.

    PREFIX.idx   "MMIDIDX\\0\\0", version 1 (8 bytes), dtype code (1), sequences S (8), D + 1 (8)
                 S lengths in tokens (int32), S pointers in bytes (int64)
                 D + 1 sequence numbers (int64): document d is the sequences from entry d to d + 1
    PREFIX.bin   the tokens, one sequence after another

All numbers are little-endian. `data build` writes one sequence a document.

>>> dataset = IndexedDataset.open("data/pile")
>>> len(dataset), dataset[0].dtype
(12, dtype('uint16'))
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bitstep.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, dtype code, number of sequences, number of documents plus one."""
DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
"""Of tokens, by code. Codes 6 and 7 are float64 and float32: no tokens."""

CHUNK = 1 << 20
"""Sequences, or tokens, that are looked at together: bounds the memory of a check."""

Tokens = npt.NDArray[np.integer[Any]]


class Scan(NamedTuple):
    """What one pass over every byte of a dataset finds."""

    digest: str
    """SHA-256 in hex of the .idx followed by the .bin: `cat PREFIX.idx PREFIX.bin | sha256sum`."""
    least: int
    """Least token."""
    largest: int
    """Largest token."""


@dataclass(frozen=True, eq=False)
class IndexedDataset:
    """The arrays of one dataset, all read-only views of its mapped files."""

    prefix: str
    tokens: Tokens
    """[tokens] of all sequences."""
    lengths: npt.NDArray[np.int32]
    """[sequences], in tokens; may be 0."""
    pointers: npt.NDArray[np.int64]
    """[sequences]: the byte of the .bin where each begins."""
    documents: npt.NDArray[np.int64]
    """[documents + 1]: the first sequence of each document, and the number of sequences."""
    index: npt.NDArray[np.uint8]
    """The bytes of the .idx."""

    @classmethod
    def open(cls, prefix: str | Path) -> IndexedDataset:
        """Map PREFIX.idx and PREFIX.bin.

        Raises DataError for a file that is missing, a link or not a regular file, and for an index
        that is damaged, in another version or dtype, or not that of this .bin.
        """
        index_path, tokens_path = f"{prefix}.idx", f"{prefix}.bin"
        index, tokens = _map(index_path), _map(tokens_path)
        code, sequences, boundaries = _header(index_path, index)
        dtype = np.dtype(DTYPES[code]).newbyteorder("<")
        if tokens.size == 0 or tokens.size % dtype.itemsize:
            raise DataError(
                f"{tokens_path}: {tokens.size} bytes are no tokens of {dtype.itemsize} bytes; "
                "build the dataset again"
            )
        offset = HEADER.size
        arrays = []
        for kind, count in (("<i4", sequences), ("<i8", sequences), ("<i8", boundaries)):
            arrays.append(np.frombuffer(index, kind, count, offset))
            offset += arrays[-1].nbytes
        dataset = cls(str(prefix), tokens.view(dtype), arrays[0], arrays[1], arrays[2], index)
        _check_sequences(index_path, dataset)
        _check_documents(index_path, dataset)
        return dataset

    def __len__(self) -> int:
        """The number of sequences."""
        return self.lengths.size

    def __getitem__(self, index: int) -> Tokens:
        """[length] tokens of a sequence, a read-only view. Raises DataError outside the dataset."""
        if not 0 <= index < len(self):
            raise DataError(
                f"sequence {index} of {self.prefix}: it has 0 to {len(self) - 1}; name one of them"
            )
        start = int(self.pointers[index]) // self.tokens.itemsize
        return self.tokens[start : start + int(self.lengths[index])]

    def document_offsets(self) -> npt.NDArray[np.int64]:
        """[documents + 1]: the first token of each document, and the number of tokens."""
        offsets = np.full(self.documents.size, self.tokens.size, np.int64)
        begins = self.documents < len(self)  # others are empty documents at the end
        offsets[begins] = self.pointers[self.documents[begins]] // self.tokens.itemsize
        return offsets

    @cached_property
    def scan(self) -> Scan:
        """Digest and range of the tokens. Reads every byte once, the first time."""
        digest = hashlib.sha256(self.index.data)
        least, largest = int(self.tokens[0]), int(self.tokens[0])
        for start in range(0, self.tokens.size, CHUNK):
            chunk = self.tokens[start : start + CHUNK]
            digest.update(chunk.data)
            least, largest = min(least, int(chunk.min())), max(largest, int(chunk.max()))
        return Scan(digest.hexdigest(), least, largest)


def _map(path: str) -> npt.NDArray[np.uint8]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as problem:  # ValueError: a null character in the path
        hint = "a link is not followed; name the file that it leads to"
        reason = getattr(problem, "strerror", None) or str(problem)
        raise DataError(f"{path}: {hint if os.path.islink(path) else reason}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path} is not a regular file; name the prefix of a dataset")
        if status.st_size == 0:  # cannot be mapped
            return np.empty(0, np.uint8)
        mapped = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    return np.frombuffer(mapped, np.uint8)


def _header(path: str, index: npt.NDArray[np.uint8]) -> tuple[int, int, int]:
    if index.size < HEADER.size:
        raise DataError(f"{path}: {index.size} bytes are no index; build the dataset again")
    magic, version, code, sequences, boundaries = HEADER.unpack_from(index.data)
    if magic != MAGIC:
        raise DataError(f"{path}: begins with {magic!r}, not {MAGIC!r}; name an indexed dataset")
    if version != VERSION:
        raise DataError(f"{path}: version {version}; only {VERSION} is known")
    if code not in DTYPES:
        raise DataError(f"{path}: dtype code {code} is none of tokens; those are {_codes()}")
    wanted = HEADER.size + sequences * (4 + 8) + boundaries * 8
    if index.size == wanted + sequences and sequences:
        raise DataError(f"{path}: has modes, so it is multimodal; only text can be read")
    if index.size != wanted:
        raise DataError(
            f"{path}: {index.size} bytes, and {sequences} sequences with {boundaries} boundaries "
            f"of documents take {wanted}; it is damaged or cut: build the dataset again"
        )
    return code, sequences, boundaries


def _codes() -> str:
    return ", ".join(f"{code} {name}" for code, name in DTYPES.items())


def _check_sequences(path: str, dataset: IndexedDataset) -> None:
    """Lengths and pointers tile the .bin without a hole or an overlap."""
    end, itemsize = 0, dataset.tokens.itemsize
    for first, lengths, pointers in _chunks(dataset):
        if lengths.min() < 0:
            wrong = first + int(np.argmax(lengths < 0))
            raise DataError(f"{path}: sequence {wrong} has length {dataset.lengths[wrong]}{_BAD}")
        # A sum of CHUNK lengths below 2^31 stays below 2^51: no overflow, whatever the file says.
        ends = end + np.cumsum(lengths, dtype=np.int64) * itemsize
        differ = pointers != np.concatenate(([end], ends[:-1]))
        if differ.any():
            wrong = first + int(np.argmax(differ))
            raise DataError(
                f"{path}: sequence {wrong} begins at byte {dataset.pointers[wrong]}, which is not "
                f"where the one before it ends{_BAD}"
            )
        end = int(ends[-1])
        if end > dataset.tokens.nbytes:
            break
    if end != dataset.tokens.nbytes:
        raise DataError(
            f"{path}: its sequences reach {'' if end < dataset.tokens.nbytes else 'at least '}byte "
            f"{end} and the .bin has {dataset.tokens.nbytes}; bring back the two files of one build"
        )


_BAD = "; it is damaged: build the dataset again"


def _chunks(
    dataset: IndexedDataset,
) -> Iterator[tuple[int, npt.NDArray[np.int32], npt.NDArray[np.int64]]]:
    for first in range(0, len(dataset), CHUNK):
        part = slice(first, first + CHUNK)
        yield first, dataset.lengths[part], dataset.pointers[part]


def _check_documents(path: str, dataset: IndexedDataset) -> None:
    documents = dataset.documents
    if documents.size == 0 or documents[0] != 0 or documents[-1] != len(dataset):
        raise DataError(f"{path}: its documents do not go from 0 to {len(dataset)}{_BAD}")
    for first in range(0, documents.size, CHUNK):
        part = documents[first : first + CHUNK + 1]
        if (part[1:] < part[:-1]).any():
            wrong = first + int(np.argmax(part[1:] < part[:-1]))
            raise DataError(f"{path}: document {wrong} ends before it begins{_BAD}")
