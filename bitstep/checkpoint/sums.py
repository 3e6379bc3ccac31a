"""The sums of a part from its bytes: NumPy alone, or the compiled kernel where Numba is installed.

A part is a box of its logical tensor. Its bytes are runs: pieces that are contiguous in the part
and in the tensor. A part cut along the first dimension is one run.

>>> runs(Box((4, 3), (1, 0), (2, 3)), 4), runs(Box((4, 3), (1, 1), (2, 2)), 4)
((12, 24, []), (16, 8, [(2, 12)]))
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from bitstep.checkpoint.format import Sums, hexadecimal
from bitstep.checkpoint.rankfile import Bytes
from bitstep.fingerprint import definition
from bitstep.records import Box

_CHUNK = 1 << 20


def sums_of(data: Bytes, dtype: str, place: Box) -> Sums:
    """The sums of both tables of a part, given its bytes in row-major order."""
    start, run, loops = runs(place, definition.SIZES[dtype])
    one, two = (_sum(data, start, run, loops, table) for table in (1, 2))
    return hexadecimal(one), hexadecimal(two)


def runs(place: Box, itemsize: int) -> tuple[int, int, list[tuple[int, int]]]:
    """First byte in the tensor, bytes in a run, and the loops over runs.

    A loop is (count, step in bytes of the tensor), the innermost first.
    """
    steps = [itemsize * math.prod(place.shape[dim + 1 :]) for dim in range(len(place.shape))]
    start = sum(offset * step for offset, step in zip(place.offsets, steps, strict=True))
    run = itemsize
    loops: list[tuple[int, int]] = []
    for size, step in reversed(list(zip(place.sizes, steps, strict=True))):
        if run == step and not loops:
            run *= size
        else:
            loops.append((size, step))
    return start, run, loops


def _sum(data: Bytes, start: int, run: int, loops: list[tuple[int, int]], table: int) -> int:
    try:
        from bitstep.fingerprint import cpu
    except ImportError:  # the base package has no Numba
        return _plain_sum(data, start, run, loops, table)
    levels = np.array(loops, dtype=np.int64).reshape(-1, 2)
    return int(cpu.box_sum(data.ctypes.data, run, start, levels, *cpu.TABLES[table]))


def _plain_sum(data: Bytes, start: int, run: int, loops: list[tuple[int, int]], table: int) -> int:
    total, at = 0, 0
    outer_first = [range(0, count * step, step) for count, step in reversed(loops)]
    for moves in product(*outer_first):
        begin = start + sum(moves)
        for done in range(0, run, _CHUNK):  # the definition takes ten times its input in memory
            chunk = data[at + done : at + min(done + _CHUNK, run)]
            total += definition.sum_of(chunk, begin + done, table)
        at += run
    return total & definition.MASK
