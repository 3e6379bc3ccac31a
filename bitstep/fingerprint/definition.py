"""What "the same bits" means: this file is the definition `bitstep-1`, in NumPy.

1. The bytes of the logical tensor, row-major and little-endian, are read as 32-bit lanes; the
   last lane is padded with zero bytes.
2. `sum_of` adds lane x K[lane index mod 2048] x A(lane index div 2048), modulo 2^64.
3. `merge` adds parts and counts their bytes; `complete` makes a fingerprint of a whole.
4. `root` digests many named fingerprints.

The fast paths give these values or are wrong. `docs/fingerprint.md` says the same in words.

>>> f"{sum_of(b'bits'):016x}"
'814ac40142a63706'
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from bitstep.errors import FingerprintError
from bitstep.records import Fingerprint, Part

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEFINITION = "bitstep-1"
LANES = 2048
"""Lanes in a block."""
MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
MUL1 = 0xBF58476D1CE4E5B9
MUL2 = 0x94D049BB133111EB

SIZES: dict[str, int] = {
    **dict.fromkeys(["bool", "uint8", "int8", "bits8", "bits1x8", "bits2x4", "bits4x2"], 1),
    **dict.fromkeys([f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)], 1),
    **dict.fromkeys(["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"], 1),
    **dict.fromkeys(["float8_e8m0fnu", "float4_e2m1fn_x2"], 1),
    **dict.fromkeys(["float16", "bfloat16", "int16", "uint16", "bits16"], 2),
    **dict.fromkeys(["float32", "int32", "uint32", "complex32"], 4),
    **dict.fromkeys(["float64", "int64", "uint64", "complex64"], 8),
    "complex128": 16,
}
"""Bytes of one element. An element of `float4_e2m1fn_x2` is a byte that holds two numbers."""


def numbers(seed: int, first: int, count: int) -> NDArray[np.uint64]:
    """Numbers `first` to `first + count - 1` of the SplitMix64 stream of `seed`, from 1."""
    n = np.arange(count, dtype=np.uint64) + np.uint64(first)
    z = np.uint64(seed) + n * np.uint64(STEP)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MUL1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MUL2)
    return z ^ (z >> np.uint64(31))


def seeds(table: int) -> tuple[int, int]:
    """The seeds of K and of A.

    Raises:
        FingerprintError: the table is not 1 or 2.
    """
    if table not in (1, 2):
        raise FingerprintError(f"there is no table {table!r}: use 1 or 2")
    return 2 * table, 2 * table + 1


@functools.cache
def k_table(table: int = 1) -> NDArray[np.uint32]:
    """K: 2048 odd numbers of 32 bits with the top bit set, distinct up to sign modulo 2^13.

    So K[i] + K[j] and K[i] - K[j] are never divisible by 2^13: two equal or opposite changes
    of two lanes of a block cannot cancel, and four in a rectangle of two blocks rarely do.
    """
    draws = numbers(seeds(table)[0], 1, 1 << 16) >> np.uint64(32)
    draws |= np.uint64(0x80000001)
    low = draws % np.uint64(8192)
    _, first = np.unique(np.minimum(low, np.uint64(8192) - low), return_index=True)
    assert len(first) == LANES, "the stream is too short for every class"
    k = draws[np.sort(first)].astype(np.uint32)
    k.setflags(write=False)
    return k


def a_factors(first: int, count: int, table: int = 1) -> NDArray[np.uint64]:
    """A of `count` blocks from block `first`: odd and not affine in the block number."""
    return numbers(seeds(table)[1], first + 1, count) | np.uint64(1)


def sum_of(data: bytes | NDArray[np.uint8], start: int = 0, table: int = 1) -> int:
    """The sum of a run of logical bytes of which the first is byte `start` of the tensor."""
    block_bytes = 4 * LANES
    lead, block = start % block_bytes, start // block_bytes
    padded = np.zeros(-(-(lead + len(data)) // block_bytes) * block_bytes, np.uint8)
    padded[lead : lead + len(data)] = np.frombuffer(data, np.uint8)
    lanes = padded.view("<u4").astype(np.uint64).reshape(-1, LANES)
    of_blocks = (lanes * k_table(table)).sum(axis=1, dtype=np.uint64)
    factors = a_factors(block, len(of_blocks), table)
    return int((of_blocks * factors).sum(dtype=np.uint64))


def nbytes(dtype: str, shape: Iterable[int]) -> int:
    """Bytes of a logical tensor.

    Raises:
        FingerprintError: no dtype has this name.
    """
    if dtype not in SIZES:
        raise FingerprintError(
            f"the dtype {dtype!r} has no fingerprint: use the name of a torch dtype without"
            " 'torch.'; of a quantized tensor take the payload and the scales"
        )
    return SIZES[dtype] * math.prod(shape)


def merge(parts: Iterable[Part]) -> Part:
    """The sum of parts of one logical tensor, in any order; of no parts, an empty part."""
    total, count = 0, 0
    for part in parts:
        total, count = total + part.sum, count + part.nbytes
    return Part(total & MASK, count)


def complete(part: Part, dtype: str, shape: Iterable[int]) -> Fingerprint:
    """The fingerprint of a logical tensor whose parts have been merged.

    Raises:
        FingerprintError: the parts hold fewer or more bytes than the tensor has.
    """
    sizes = tuple(shape)
    expected = nbytes(dtype, sizes)
    if part.nbytes != expected:
        what = "a part is missing" if part.nbytes < expected else "a part was counted twice"
        raise FingerprintError(
            f"the parts hold {part.nbytes} bytes and a {dtype} tensor of shape {sizes} has"
            f" {expected}: {what}; merge every part once"
        )
    return Fingerprint(part.sum, dtype, sizes)


def root(named: Mapping[str, Fingerprint]) -> int:
    """64 bits over names, dtypes, shapes and sums, whatever the order of the mapping."""
    digest = hashlib.blake2b(f"{DEFINITION} root\n".encode(), digest_size=8)
    for name in sorted(named):
        fingerprint = named[name]
        for word in (name.encode(), fingerprint.dtype.encode()):
            digest.update(struct.pack("<Q", len(word)) + word)
        shape = fingerprint.shape
        digest.update(struct.pack(f"<{len(shape) + 2}Q", len(shape), *shape, fingerprint.sum))
    return int.from_bytes(digest.digest(), "little")
