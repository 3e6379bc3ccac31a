"""Two checkpoints, byte by byte, whatever layouts they were written in.

Digests alone would do for two honest checkpoints; a proof compares the bits themselves.

    differing_tensors(a, b) == ()
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bitstep.checkpoint.folder import Folder, open_folder
from bitstep.checkpoint.format import TensorEntry, canonical
from bitstep.checkpoint.load import load
from bitstep.checkpoint.rankfile import bits
from bitstep.records import Box
from bitstep.state.streams import Piece

if TYPE_CHECKING:
    import torch


def differing_tensors(a: Path, b: Path) -> tuple[str, ...]:
    """The paths of tensors, and the names of value streams, that are not the same in both.

    One that only one of them has is among them. Loads torch. Raises CheckpointError for a
    checkpoint that cannot be opened.
    """
    import torch

    one, other = open_folder(a), open_folder(b)
    ours = {entry.path: entry for entry in one.index.tensors}
    theirs = {entry.path: entry for entry in other.index.tensors}
    parted = [
        stream
        for stream in sorted(one.values.keys() | other.values.keys())
        # As text: in Python 1, 1.0 and True are equal, and so are 0.0 and -0.0.
        if canonical(one.values.get(stream)) != canonical(other.values.get(stream))
    ]
    for path in sorted(ours.keys() | theirs.keys()):
        mine, its = ours.get(path), theirs.get(path)
        if (
            mine is None
            or its is None
            or (mine.dtype, mine.shape) != (its.dtype, its.shape)
            or not torch.equal(_whole(one, mine), _whole(other, its))
        ):
            parted.append(path)
    return tuple(parted)


def _whole(folder: Folder, entry: TensorEntry) -> torch.Tensor:
    """The bits of one logical tensor, as integers: equal NaNs are equal, -0.0 and 0.0 are not."""
    import torch

    tensor = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
    place = Box(entry.shape, (0,) * len(entry.shape), entry.shape)
    load(folder, [Piece(entry.stream, entry.name, tensor, place)])
    return bits(tensor)
