"""The path for every device without a kernel of its own, in plain torch integer arithmetic.

1. A box is cut along its first long dimension until the pieces are small.
2. A piece is padded with zeros until it is a range of whole blocks: zeros add nothing to a sum.
3. Lanes become int64 and are multiplied and added; int64 wraps modulo 2^64.
4. The result stays on the device as a 0-d tensor: nothing here waits for the device.

Run on the CPU by the tests; on other devices untested so far.

>>> int(flat_sum(torch.tensor([98, 105, 116, 115], dtype=torch.uint8), 0, 1))
-9130269784848058618
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from bitstep.fingerprint import definition
from bitstep.fingerprint.places import first_byte, halves
from bitstep.records import Box

_BLOCK = 4 * definition.LANES
_PIECE = 1 << 24
"""Bytes of a padded piece: some 30 kernel launches, and 5 times as many bytes of scratch."""


def box_sum(tensor: Tensor, box: Box, start: int, table: int) -> Tensor:
    """The sum of a box of a larger tensor that begins at logical byte `start`.

    Args:
        tensor: the local part: dense, any strides, no lazy conjugate or negative.
        box: where it lies in the larger tensor.
        start: the logical byte of that tensor's first element.
        table: 1 or 2.

    Returns:
        A 0-d int64 tensor on the same device, to be read modulo 2^64.
    """
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for piece, place, dim in _pieces(tensor, box):
        missing: list[int] = []
        for axis in range(len(place.shape) - 1, dim, -1):
            before = place.offsets[axis]
            missing += [before, place.shape[axis] - before - place.sizes[axis]]
        row = pad(piece, missing).reshape(-1)
        # A row of one element may keep a stride that is not 1, and has then no view as bytes.
        flat = row.as_strided(row.shape, (1,)).view(torch.uint8)
        offsets = place.offsets[: dim + 1] + (0,) * (len(missing) // 2)
        first = first_byte(place.shape, offsets, tensor.itemsize)
        total = total + flat_sum(flat, start + first, table)
    return total


def _pieces(tensor: Tensor, box: Box) -> Iterator[tuple[Tensor, Box, int]]:
    """Pieces, their boxes and the dimension from which on they are padded."""
    if tensor.numel() == 0:
        return
    long = [dim for dim, size in enumerate(box.sizes) if size > 1]
    if not long:
        yield tensor, box, len(box.sizes)
        return
    padded = box.sizes[long[0]] * math.prod(box.shape[long[0] + 1 :]) * tensor.itemsize
    if padded <= _PIECE:
        yield tensor, box, long[0]
        return
    for half in halves(tensor, box, long[0]):
        yield from _pieces(*half)


@functools.cache
def _k(device: torch.device, table: int) -> Tensor:
    """K on the device: copied once, the only transfer."""
    with torch.inference_mode(False):
        return torch.from_numpy(definition.k_table(table).astype(np.int64)).to(device)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shift(z: Tensor, bits: int) -> Tensor:
    """A logical shift: `>>` of int64 is arithmetic, and z ^ (z >> bits) would lose a bit."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _factors(first: int, count: int, device: torch.device, table: int) -> Tensor:
    n = torch.arange(first + 1, first + 1 + count, dtype=torch.int64, device=device)
    z = n * _signed(definition.STEP) + definition.seeds(table)[1]
    z = (z ^ _shift(z, 30)) * _signed(definition.MUL1)
    z = (z ^ _shift(z, 27)) * _signed(definition.MUL2)
    return (z ^ _shift(z, 31)) | 1


def flat_sum(data: Tensor, start: int, table: int) -> Tensor:
    """The sum of a run of logical bytes (uint8, 1-d) of which the first is byte `start`.

    Returns:
        A 0-d int64 tensor on the same device, to be read modulo 2^64.
    """
    lead = start % _BLOCK
    padded = pad(data, (lead, -(lead + len(data)) % _BLOCK))
    lanes = padded.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    of_blocks = (lanes.view(-1, definition.LANES) * _k(data.device, table)).sum(1)
    factors = _factors(start // _BLOCK, len(of_blocks), data.device, table)
    return (of_blocks * factors).sum()
