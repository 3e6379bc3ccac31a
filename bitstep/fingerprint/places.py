"""Where a part lies in its logical tensor: boxes as runs of bytes, and boxes cut in two.

1. `whole` is the box of a tensor that is its own logical tensor.
2. `first_byte` and `runs` turn a box into runs of logical bytes.
3. `halves` cuts a local tensor and its box; the halves are parts of the same logical tensor.

>>> runs(Box((4, 6), (1, 2), (2, 3)), 4)
(12, [(2, 24)])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from bitstep.records import Box

if TYPE_CHECKING:
    from torch import Tensor


def whole(shape: Iterable[int]) -> Box:
    """The box that is its logical tensor."""
    sizes = tuple(shape)
    return Box(sizes, (0,) * len(sizes), sizes)


def first_byte(shape: Iterable[int], offsets: Iterable[int], itemsize: int) -> int:
    """The logical byte at which the element with these offsets begins."""
    place = 0
    for size, offset in zip(shape, offsets, strict=True):
        place = place * size + offset
    return place * itemsize


def runs(box: Box, itemsize: int) -> tuple[int, list[tuple[int, int]]]:
    """Bytes in each run of a box, and the loops over its runs, the innermost first.

    A loop is (count, step in logical bytes). Dimensions that follow each other without a gap are
    one.
    """
    groups = [(itemsize, 1)]
    step = itemsize
    for full, size in zip(reversed(box.shape), reversed(box.sizes), strict=True):
        count, inner = groups[-1]
        if size != 1 and step == count * inner:
            groups[-1] = (count * size, inner)
        elif size != 1:
            groups.append((size, step))
        step *= full
    return groups[0][0], groups[1:]


def halves(tensor: Tensor, box: Box, dim: int) -> Iterator[tuple[Tensor, Box]]:
    """The two halves along a dimension that is longer than 1."""
    half = box.sizes[dim] // 2
    for begin, count in ((0, half), (half, box.sizes[dim] - half)):
        offsets, sizes = list(box.offsets), list(box.sizes)
        offsets[dim], sizes[dim] = offsets[dim] + begin, count
        yield tensor.narrow(dim, begin, count), Box(box.shape, tuple(offsets), tuple(sizes))
