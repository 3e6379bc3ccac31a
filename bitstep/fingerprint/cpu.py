"""The fast path in host memory: Numba kernels that give the values of the definition.

1. A run is contiguous in memory and in the logical tensor; it may begin at any byte of either.
2. `run_sum` adds one run: loose bytes up to a lane, whole lanes block by block, loose bytes.
3. `box_sum` adds the many equal runs of which a slice of a tensor is made.
4. `box_sums` does this for many tensors in one call.
5. On import the kernels are compiled, or loaded, and compared with the definition once.

One core, no threads of its own, the GIL released. With `cache=True` the folder `__pycache__`
holds pickled machine code: trust it as far as a .pyc file.

>>> k, seed = TABLES[1]
>>> run_sum(address_of_four_bytes, 4, 0, k, seed)  # doctest: +SKIP
9316474288861492998
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from bitstep.errors import FingerprintError
from bitstep.fingerprint import definition

_U = np.uint64
_LANES = definition.LANES
_BLOCK = 4 * _LANES
_STEP = _U(definition.STEP)
_MUL1 = _U(definition.MUL1)
_MUL2 = _U(definition.MUL2)
_BYTES: Any = types.CPointer(types.uint8)  # type: ignore[no-untyped-call]


def _inttoptr(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return _BYTES(types.int64), generate


def _loader(result: Any) -> Any:
    def load(typing: Any, pointer: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = builder.gep(arguments[0], [arguments[1]])
            wide = builder.bitcast(place, ir.IntType(result.bitwidth).as_pointer())
            value = builder.load(wide)
            value.align = 1  # A part may begin at any byte; the default would promise more.
            return value

        return result(_BYTES, types.int64), generate

    return intrinsic(load)


# An integer address as a pointer: an array argument would cost more than the work of 4 KB.
_pointer: Any = intrinsic(_inttoptr)
_load8 = _loader(types.uint8)
_load32 = _loader(types.uint32)


@njit
def _factor(block: int, seed: Any) -> Any:
    z = seed + _U(block + 1) * _STEP
    z = (z ^ (z >> _U(30))) * _MUL1
    z = (z ^ (z >> _U(27))) * _MUL2
    return (z ^ (z >> _U(31))) | _U(1)


@njit
def _loose(data: Any, at: int, start: int, k: Any, seed: Any) -> Any:
    byte = start + at
    lane = byte >> 2
    value = _U(_load8(data, at)) << _U(8 * (byte & 3))
    return value * _U(_load32(k, 4 * (lane & (_LANES - 1)))) * _factor(lane >> 11, seed)


@njit
def _lanes(data: Any, at: int, k: Any, first: int, count: int) -> Any:
    # Zero-extended 32 x 32 -> 64: one vpmuludq for 4 (AVX2) or 8 (AVX-512) lanes. The compiler
    # keeps several accumulators by itself; two by hand were no faster.
    total = _U(0)
    for i in range(count):
        total += _U(_load32(data, at + 4 * i)) * _U(_load32(k, 4 * (first + i)))
    return total


@njit
def _eight_blocks(data: Any, at: int, block: int, k: Any, seed: Any) -> Any:
    # Side by side: a core waits for one stream of addresses at a time. From memory 8 blocks at
    # once are read at 13 GB/s where one after the other are at 8 (measured).
    a = b = c = d = e = f = g = h = _U(0)
    for i in range(at, at + _BLOCK, 4):
        mix = _U(_load32(k, i - at))
        a += _U(_load32(data, i)) * mix
        b += _U(_load32(data, i + _BLOCK)) * mix
        c += _U(_load32(data, i + 2 * _BLOCK)) * mix
        d += _U(_load32(data, i + 3 * _BLOCK)) * mix
        e += _U(_load32(data, i + 4 * _BLOCK)) * mix
        f += _U(_load32(data, i + 5 * _BLOCK)) * mix
        g += _U(_load32(data, i + 6 * _BLOCK)) * mix
        h += _U(_load32(data, i + 7 * _BLOCK)) * mix
    total = _U(0)
    for i, part in enumerate((a, b, c, d, e, f, g, h)):
        total += part * _factor(block + i, seed)
    return total


@njit
def _run(data: Any, nbytes: int, start: int, k: Any, seed: Any) -> Any:
    total = _U(0)
    at = 0
    while at < nbytes and (start + at) & 3:
        total += _loose(data, at, start, k, seed)
        at += 1
    while nbytes - at >= 4:
        lane = (start + at) >> 2
        first = lane & (_LANES - 1)
        if first == 0 and nbytes - at >= 8 * _BLOCK:
            total += _eight_blocks(data, at, lane >> 11, k, seed)
            at += 8 * _BLOCK
            continue
        count = min(_LANES - first, (nbytes - at) >> 2)
        total += _lanes(data, at, k, first, count) * _factor(lane >> 11, seed)
        at += 4 * count
    while at < nbytes:
        total += _loose(data, at, start, k, seed)
        at += 1
    return total


@njit
def _box(address: int, nbytes: int, start: int, loops: Any, k: int, seed: int) -> Any:
    total = _U(0)
    counter = np.zeros(len(loops), np.int64)
    at = 0
    while True:
        total += _run(_pointer(address + at), nbytes, start, _pointer(k), _U(seed))
        at += nbytes
        level = 0
        while level < len(loops):
            counter[level] += 1
            start += loops[level, 1]
            if counter[level] < loops[level, 0]:
                break
            start -= loops[level, 0] * loops[level, 1]
            counter[level] = 0
            level += 1
        if level == len(loops):
            return total


def _run_sum(address: int, nbytes: int, start: int, k: int, seed: int) -> Any:
    return _run(_pointer(address), nbytes, start, _pointer(k), _U(seed))


def _box_sum(address: int, nbytes: int, start: int, loops: Any, k: int, seed: int) -> Any:
    return _box(address, nbytes, start, loops, k, seed)


def _box_sums(addresses: Any, jobs: Any, loops: Any, sums: Any, k: int, seed: int) -> None:
    for at in range(len(addresses)):
        nbytes, start, low, high = jobs[at]
        if low == high:
            sums[at] = _run(_pointer(addresses[at]), nbytes, start, _pointer(k), _U(seed))
        else:
            sums[at] = _box(addresses[at], nbytes, start, loops[low:high], k, seed)


def _compile(signature: str, function: Callable[..., Any]) -> Callable[..., int]:
    result: Callable[..., int] = _cached(functools.partial(njit, signature, nogil=True), function)
    return result


def _cached(compiler: Any, function: Callable[..., Any]) -> Any:
    try:
        return compiler(cache=True)(function)
    except Exception:  # No cache folder can be written, or what is in it cannot be unpickled.
        return compiler()(function)


run_sum = _compile("uint64(int64, int64, int64, int64, int64)", _run_sum)
"""(address, nbytes, start, k, seed): the sum of one run whose first byte is logical byte `start`.
"""
box_sum = _compile("uint64(int64, int64, int64, int64[:, ::1], int64, int64)", _box_sum)
"""(address, nbytes, start, loops, k, seed): the sum of equal runs that follow each other in
memory. `loops`: (count, step in logical bytes) of each loop, the innermost first."""

box_sums: Callable[..., None] = _compile(  # type: ignore[assignment]
    "void(int64[::1], int64[:, ::1], int64[:, ::1], uint64[::1], int64, int64)", _box_sums
)
"""(addresses, jobs, loops, sums, k, seed): many of both, in one call from Python. A job is
(nbytes, start, first, end): its loops are `loops[first:end]`; without any it is one run."""


@functools.cache
def address_of_run_sum() -> int:
    """Where compiled code may call `run_sum`, with or without the GIL."""
    signature = "uint64(int64, int64, int64, int64, int64)"
    return int(_cached(functools.partial(cfunc, signature), _run_sum).address)


TABLES = {table: (definition.k_table(table).ctypes.data, 2 * table + 1) for table in (1, 2)}
"""Table -> the address of K and the seed of A."""


def sum_of_bytes(raw: bytes) -> int:
    """The sum of some bytes, as `definition.sum_of` gives it."""
    data = np.frombuffer(raw, np.uint8)
    return run_sum(data.ctypes.data, len(raw), 0, *TABLES[1])


def check() -> None:
    """Compare the kernels with the definition.

    Numba takes machine code from its cache when the date and size of this one file agree. So it
    may be older than `definition.py`, or damaged.

    Raises:
        FingerprintError: they differ.
    """
    data = definition.numbers(7, 1, 40_000).view(np.uint8)
    address, size, start = data.ctypes.data, len(data) // 2 - 3, 8192 * 5 - 2
    loops = np.array([[2, size]], np.int64)
    for table, tail in TABLES.items():
        expected = definition.sum_of(data[: 2 * size], start, table)
        found = run_sum(address, 2 * size, start, *tail)
        if not expected == found == box_sum(address, size, start, loops, *tail):
            raise FingerprintError(
                "the compiled kernel does not give the value of the definition:"
                " delete the folder __pycache__ beside bitstep/fingerprint/cpu.py"
            )


check()
