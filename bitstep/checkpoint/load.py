"""Fill live tensors from the parts of a checkpoint, in any layout.

For each part that overlaps a local part, the rows of the overlap are read and copied as integers
of the same width: no cast, no arithmetic, no bit of a NaN changed. A part that is cut along the
first dimension is read to the byte; of other cuts, whole rows are read and sliced.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bitstep.checkpoint.folder import Folder
from bitstep.checkpoint.format import PartEntry
from bitstep.checkpoint.rankfile import Slot, bits, opened, plan, read

if TYPE_CHECKING:
    import torch

    from bitstep.records import Box
    from bitstep.state.streams import Piece


class _Overlap(NamedTuple):
    """What a local part and a saved part have in common. Units: elements."""

    to: tuple[slice, ...]
    """In the local part."""
    of: tuple[slice, ...]
    """In the saved part."""


def load(folder: Folder, pieces: Sequence[Piece]) -> None:
    """Copy into each piece what the checkpoint has of it. Raises CheckpointError, OSError."""
    slots: dict[str, dict[str, Slot]] = {}
    for name, parts in folder.parts.items():
        _, listed = plan((key, tensor.dtype, part.sizes) for key, (tensor, part) in parts.items())
        slots[name] = {slot.key: slot for slot in listed}
    saved = {entry.path: entry for entry in folder.index.tensors}
    for piece in pieces:
        target = bits(piece.tensor.detach())
        for part in saved[piece.path].parts:
            overlap = _overlap(piece.place, part)
            if overlap is not None:
                slot = slots[part.file][part.key]
                source = _read_rows(folder.path / part.file, slot, part, overlap, target)
                target[overlap.to].copy_(source)


def _overlap(place: Box, part: PartEntry) -> _Overlap | None:
    to, of = [], []
    sides = zip(place.offsets, place.sizes, part.offsets, part.sizes, strict=True)
    for here, size, there, length in sides:
        begin, end = max(here, there), min(here + size, there + length)
        if begin >= end:
            return None
        to.append(slice(begin - here, end - here))
        of.append(slice(begin - there, end - there))
    return _Overlap(tuple(to), tuple(of))


def _read_rows(
    path: Path, slot: Slot, part: PartEntry, overlap: _Overlap, like: torch.Tensor
) -> torch.Tensor:
    """The overlap as a host tensor of the integers that `bits` gives."""
    import torch

    rows = overlap.of[0] if part.sizes else slice(0, 1)
    count = part.sizes[0] if part.sizes else 1
    width = slot.nbytes // count
    with opened(path) as descriptor:
        begin, end = rows.start * width, rows.stop * width
        data = read(descriptor, slot.start + begin, end - begin, path)
    tail = (2,) if slot.nbytes == 16 * prod(part.sizes) else ()
    shape = (rows.stop - rows.start, *part.sizes[1:], *tail) if part.sizes else tail
    source = torch.from_numpy(data).view(like.dtype).reshape(shape)
    return source[(slice(None), *overlap.of[1:])] if part.sizes else source
