"""The file of one process: its parts, one after another, in the safetensors format.

The header follows from what the file holds, so that a reader which has the index computes the
header and compares bytes; it never parses one, and no length in the file is believed. Any
safetensors reader opens these files. Three more reasons not to use the library's own writer and
reader here: `checkpoint verify` works where only the base package is installed; parts stream to
disk and through SHA-256 without a second copy of everything; and the library (0.8) cannot read
back float8_e8m0fnu, float4_e2m1fn_x2, complex32 and complex128. Those are flat uint8 in the file.

Parts are read with pread and not mapped: a mapped file that shrinks, or a disk error, would end
the process with SIGBUS and no name.

>>> plan([("step/count@", "int64", ())])[0][8:]
b'{"step/count@":{"data_offsets":[0,8],"dtype":"I64","shape":[]}} '
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bitstep.checkpoint.format import FileEntry
from bitstep.errors import CheckpointError
from bitstep.fingerprint import nbytes as logical_nbytes

if TYPE_CHECKING:
    import torch

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_CHUNK = 1 << 24


class Slot(NamedTuple):
    """Where a part lies in its file. Units: bytes."""

    key: str
    start: int
    nbytes: int


def plan(parts: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[bytes, list[Slot]]:
    """The first bytes of the file that holds parts (key, dtype, sizes), and where each one lies.

    Wide elements come first: the header is padded to 8 bytes, so every part lies at a multiple of
    its own element, and nothing lies between parts.
    """
    wide_first = sorted(parts, key=lambda part: (-logical_nbytes(part[1], ()), part[0]))
    fields, sizes, end = {}, [], 0
    for key, dtype, shape in wide_first:
        size = logical_nbytes(dtype, shape)
        code = _CODES.get(dtype)
        fields[key] = {
            "data_offsets": [end, end + size],
            "dtype": code or "U8",
            "shape": list(shape) if code else [size],
        }
        sizes.append((key, end, size))
        end += size
    text = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return head, [Slot(key, len(head) + start, size) for key, start, size in sizes]


def write(path: Path, parts: dict[str, torch.Tensor]) -> FileEntry:
    """Write a new file of local parts by key, flush it to the disk, and say what it must be.

    The checksum is that of the bytes in memory, not of what can be read back: a reading now would
    be served from memory too, and would vouch for a bad write. Raises OSError.
    """
    head, slots = plan(
        (key, str(part.dtype).removeprefix("torch."), tuple(part.shape))
        for key, part in parts.items()
    )
    digest, total = sha256(head), len(head)
    with open(path, "xb") as file:
        file.write(head)
        for slot in slots:
            data = raw(parts[slot.key])
            for begin in range(0, slot.nbytes, _CHUNK):
                chunk = data[begin : begin + _CHUNK].data
                digest.update(chunk)
                file.write(chunk)
            total += slot.nbytes
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(total, digest.hexdigest())


def raw(tensor: torch.Tensor) -> Bytes:
    """The bytes of a tensor in row-major order, shape (nbytes,); copied only where needed."""
    import torch  # here, so that the reading half works without it

    plain = tensor.detach().resolve_conj().resolve_neg()
    flat = bits(plain).cpu().contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same storage, indices and strides as integers: copying them changes no bit of a NaN.

    Elements of 16 bytes become two, in a last dimension of their own. Works for every dtype, also
    for float4_e2m1fn_x2, for which torch has few operations.
    """
    import torch

    if tensor.element_size() == 16:
        return torch.view_as_real(tensor).view(torch.int64)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(integers[tensor.element_size()])


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A file to read, never through a symbolic link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read(descriptor: int, start: int, nbytes: int, path: Path) -> Bytes:
    """A range of bytes of an open file, shape (nbytes,). Raises CheckpointError at its end."""
    data = np.empty(nbytes, dtype=np.uint8)
    done = 0
    while done < nbytes:
        got = os.preadv(descriptor, [data[done : done + (1 << 30)].data], start + done)
        if got == 0:
            raise CheckpointError(f"{path} ends after {start + done} bytes; use another checkpoint")
        done += got
    return data
