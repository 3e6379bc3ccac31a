"""The scales of a quantized tensor without the padding around them.

1. Kernels want the scales of blocks in buffers of whole tiles, and leave the rest of a tile
   unwritten: `region` says, per format, what is allocated and what of it is valid.
2. `valid_scales` gives the valid region as a view.
3. GEMM kernels want the scales of MXFP8 and NVFP4 swizzled: tiles of 128 x 4, in which rows r,
   r + 32, r + 64 and r + 96 lie next to each other. `unswizzled` puts them back in their order, so
   that another layout of the same scales has the same bits here.

Shapes are those of Transformer Engine, of a tensor of M x K: M is the product of all dimensions but
the last.

>>> region(Scaling.MXFP8, 96, 64, column=False)
Region(allocated=(128, 4), valid=(96, 2))
"""

from __future__ import annotations

import enum
from math import prod
from typing import Final, NamedTuple

from torch import Tensor

Size = tuple[int, int]

_TILE: Final = (128, 4)


class Scaling(enum.Enum):
    """What shares a scale."""

    TENSOR = "tensor"
    """All elements."""
    MXFP8 = "mxfp8"
    """32 along a row; 32 along a column of the column copy."""
    NVFP4 = "nvfp4"
    """16 along a row; of the column copy, which is stored transposed, as well."""
    LINES = "1x128"
    SQUARES = "128x128"

    @property
    def can_be_swizzled(self) -> bool:
        return self in (Scaling.MXFP8, Scaling.NVFP4)


class Region(NamedTuple):
    """What of a buffer of scales is valid: its first rows and columns."""

    allocated: Size
    valid: Size


def region(scaling: Scaling, m: int, k: int, column: bool) -> Region:
    """The shapes of the scales of an M x K tensor, or of its column copy; not for TENSOR."""
    if scaling is Scaling.MXFP8:
        valid = (m // 32, k) if column else (m, k // 32)
        return Region(_rounded(valid, _TILE[::-1] if column else _TILE), valid)
    if scaling is Scaling.NVFP4:
        valid = (k, _blocks(m, 16)) if column else (m, _blocks(k, 16))
        return Region(_rounded(valid, _TILE), valid)
    if scaling is Scaling.SQUARES:
        valid = _blocks(m, 128), _blocks(k, 128)
        valid = valid[::-1] if column else valid
        return Region(_rounded(valid, (1, 4)), valid)
    assert scaling is Scaling.LINES, f"{scaling} has no blocks"
    valid = (_blocks(m, 128), k) if column else (_blocks(k, 128), m)
    return Region(_rounded(valid, (1, 4)), valid)


def valid_scales(
    buffer: Tensor, scaling: Scaling, m: int, k: int, column: bool, swizzled: bool = False
) -> Tensor | None:
    """The valid scales of an M x K tensor, in row-major order; a view, or a copy if swizzled.

    None: the buffer has neither the allocated shape nor room for what is valid, so that nobody
    knows which of its bytes are padding.
    """
    allocated, valid = region(scaling, m, k, column)
    if swizzled and scaling.can_be_swizzled:
        # The column copy of MXFP8 is swizzled as the transposed tensor that GEMM reads.
        turned = column and scaling is Scaling.MXFP8
        found = unswizzled(buffer, *(valid[::-1] if turned else valid))
        return found.t().contiguous() if turned and found is not None else found
    if buffer.numel() == prod(allocated) and buffer.is_contiguous():
        buffer = buffer.view(allocated)
    if buffer.dim() != 2 or buffer.shape[0] < valid[0] or buffer.shape[1] < valid[1]:
        return None
    return buffer[: valid[0], : valid[1]]


def unswizzled(buffer: Tensor, rows: int, columns: int) -> Tensor | None:
    """Swizzled scales as a matrix of rows x columns, a copy; None: the buffer is no such tiles."""
    tiles = _blocks(rows, _TILE[0]), _blocks(columns, _TILE[1])
    if buffer.numel() != prod(tiles) * prod(_TILE):
        return None
    # Of tile (i, j), element (a, b, c) is row 32 b + a, column c.
    parts = buffer.reshape(*tiles, 32, 4, 4).permute(0, 3, 2, 1, 4)
    whole = parts.reshape(tiles[0] * _TILE[0], tiles[1] * _TILE[1])
    return whole[:rows, :columns].contiguous()


def _blocks(count: int, block: int) -> int:
    return -(-count // block)


def _rounded(size: Size, to: Size) -> Size:
    return _blocks(size[0], to[0]) * to[0], _blocks(size[1], to[1]) * to[1]
