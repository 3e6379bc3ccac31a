"""A range of the elements of a local tensor, as boxes of the logical tensor that it is a part of.

A distributed optimizer cuts flat buffers where it likes; the local tensor that a cut goes through
is itself a box of a logical tensor. Such a range is at most 2 * dimensions - 1 boxes.

>>> [box.sizes for box in boxes_of(1, 7, Box((4, 3), (1, 0), (3, 3)))]
[(1, 2), (1, 3), (1, 1)]
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from bitstep.records import Box


def boxes_of(start: int, end: int, place: Box) -> Iterator[Box]:
    """The boxes that elements `start` to `end` of a local tensor fill, in row-major order.

    Args:
        start, end: elements of the local tensor, flattened.
        place: of the local tensor in its logical tensor.
    """
    for offsets, sizes in _blocks(start, end, place.sizes):
        where = tuple(a + b for a, b in zip(place.offsets, offsets, strict=True))
        yield Box(place.shape, where, sizes)


_Block = tuple[tuple[int, ...], tuple[int, ...]]


def _blocks(start: int, end: int, sizes: tuple[int, ...]) -> Iterator[_Block]:
    """Offsets and sizes of the blocks of a flat range: a partial first row, whole rows, a partial
    last one."""
    if start >= end:
        return
    if not sizes:
        yield (), ()
        return
    row = math.prod(sizes[1:])
    first, last = -(-start // row), end // row
    if first > last:  # within one row
        yield from _within(last, start, end, sizes)
        return
    yield from _within(first - 1, start, first * row, sizes)
    if last > first:
        yield (first, *(0 for _ in sizes[1:])), (last - first, *sizes[1:])
    yield from _within(last, last * row, end, sizes)


def _within(index: int, start: int, end: int, sizes: tuple[int, ...]) -> Iterator[_Block]:
    """The blocks of a range that lies in one row."""
    row = math.prod(sizes[1:])
    for offsets, inner in _blocks(start - index * row, end - index * row, sizes[1:]):
        yield (index, *offsets), (1, *inner)


def clipped(box: Box, rows: int) -> Box | None:
    """A box in a logical tensor of only so many rows; None if nothing of it is left. What is cut
    off is at its end, so that what remains of a local tensor is its beginning."""
    size = min(box.offsets[0] + box.sizes[0], rows) - box.offsets[0]
    if size <= 0:
        return None
    return Box((rows, *box.shape[1:]), box.offsets, (size, *box.sizes[1:]))
