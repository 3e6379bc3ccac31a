"""The sum of a strided tensor without a copy: its runs in memory, in one call of the kernel.

The queries of an attention are every third piece of what one product gave: each row of a head lies
in memory whole. Where runs begin depends on shape and stride alone, and is remembered.

>>> x = torch.arange(12.0).view(3, 4)[:, :2]
>>> strided_sum(x.data_ptr(), x.shape, x.stride(), x.itemsize)  # doctest: +SKIP
"""

from __future__ import annotations

import functools
import math
from typing import Final

import numpy as np
import numpy.typing as npt

from bitstep.fingerprint import cpu

_SHORTEST: Final = 32
"""Bytes of a run; a copy is faster than many that are shorter."""
_MOST: Final = 1 << 16
_MOST_LISTED: Final = 4096
"""Runs that are worth a list for a layout; compiled code keeps them."""
_NO_LOOPS: Final = np.empty((0, 2), np.int64)
_K, _SEED = cpu.TABLES[1]
Numbers = npt.NDArray[np.int64]


def strided_sum(
    address: int, shape: tuple[int, ...], stride: tuple[int, ...], width: int
) -> int | None:
    """The sum of the logical bytes of a tensor, `width` bytes an element; None where its runs are
    too short or too many."""
    found = _runs(tuple(shape), stride, width)
    if found is None:
        return None
    offsets, jobs = found
    sums = np.empty(len(jobs), np.uint64)
    cpu.box_sums(offsets + address, jobs, _NO_LOOPS, sums, _K, _SEED)
    return int(np.add.reduce(sums))


def runs_in_memory(
    shape: tuple[int, ...], stride: tuple[int, ...], width: int
) -> tuple[list[int], int]:
    """Where each run begins in memory, in logical order, and how many bytes it has; 0 bytes where
    they are too short or too many."""
    found = _runs(shape, stride, width)
    if found is None or len(found[0]) > _MOST_LISTED:
        return [], 0
    return found[0].tolist(), int(found[1][0, 0])


@functools.lru_cache(1024)
def _runs(
    shape: tuple[int, ...], stride: tuple[int, ...], width: int
) -> tuple[Numbers, Numbers] | None:
    """Offsets in memory and jobs of the runs, in logical order."""
    dims = len(shape)
    run = 1
    while dims and (shape[dims - 1] == 1 or stride[dims - 1] == run):
        dims -= 1
        run *= shape[dims]
    count = math.prod(shape[:dims])
    if run * width < _SHORTEST or count > _MOST:
        return None
    offsets = np.zeros(1, np.int64)
    for size, step in zip(shape[:dims], stride[:dims], strict=True):
        offsets = np.add.outer(offsets, np.arange(size) * step * width).ravel()
    jobs = np.zeros((count, 4), np.int64)
    jobs[:, 0] = run * width
    jobs[:, 1] = np.arange(count) * (run * width)
    return offsets, jobs
