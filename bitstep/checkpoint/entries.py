"""From the parts that processes hold to the tensors of the index.

1. Every process describes its pieces: what they are, and the sums of their bits in memory.
2. Process 0 joins them: replicas are compared and one is kept, parts must tile their tensor.

What travels between the processes is plain JSON.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from bitstep.checkpoint.folder import check_tiling
from bitstep.checkpoint.format import (
    Json,
    PartEntry,
    TensorEntry,
    canonical,
    check_values,
    hexadecimal,
    part_key,
    rank_name,
)
from bitstep.errors import CheckpointError
from bitstep.fingerprint import complete, merge, nbytes
from bitstep.records import Part
from bitstep.state.streams import STREAMS

if TYPE_CHECKING:
    from bitstep.state.streams import Piece, TrainingState


class _Described(NamedTuple):
    """One piece of one process, as JSON carries it."""

    stream: str
    name: str
    dtype: str
    shape: list[int]
    offsets: list[int]
    sizes: list[int]
    replicated: bool
    sums: list[str]

    @property
    def path(self) -> str:
        return f"{self.stream}/{self.name}"


def described(state: TrainingState) -> Json:
    """The pieces of this process, sorted by path, and the text of each value stream."""
    check_values(state.values)
    pieces = sorted(state.pieces, key=lambda piece: piece.path)
    for before, piece in pairwise(pieces):
        if before.path == piece.path:
            raise CheckpointError(f"{piece.path}: a process lists it twice; one piece each")
    return {
        "pieces": [_describe(piece) for piece in pieces],
        "values": {name: canonical(value).decode() for name, value in state.values.items()},
    }


def _describe(piece: Piece) -> _Described:
    from bitstep.fingerprint import part  # here, since it loads torch

    check_piece(piece)
    place = piece.place
    sums = [
        hexadecimal(part(piece.tensor, place, table=table).sum)
        if piece.tensor.numel()
        else "0" * 16
        for table in (1, 2)
    ]
    return _Described(
        stream=piece.stream,
        name=piece.name,
        dtype=piece.dtype,
        shape=list(place.shape),
        offsets=list(place.offsets),
        sizes=list(place.sizes),
        replicated=piece.replicated,
        sums=sums,
    )


def check_piece(piece: Piece) -> None:
    """Raise CheckpointError for a piece that cannot be one: its stream, its shape, its place."""
    if piece.stream not in STREAMS:
        raise CheckpointError(
            f"{piece.path}: unknown stream {piece.stream!r} (known: {', '.join(STREAMS)})"
        )
    if tuple(piece.tensor.shape) != tuple(piece.place.sizes):
        raise CheckpointError(
            f"{piece.path}: the local part has shape {tuple(piece.tensor.shape)} "
            f"and its place {tuple(piece.place.sizes)}"
        )
    if piece.replicated and tuple(piece.place.sizes) != tuple(piece.place.shape):
        raise CheckpointError(f"{piece.path}: a replica must be the whole tensor")


def entries(everyone: list[Json]) -> tuple[TensorEntry, ...]:
    """The tensors of the index from the descriptions of all processes, sorted by path.

    Every process must describe the same tensors, with an empty part where it holds nothing.
    """
    held = [[_Described(*piece) for piece in one["pieces"]] for one in everyone]
    for rank, one in enumerate(everyone):
        _compare_values(everyone[0]["values"], one["values"], rank)
        _compare_paths(held[0], held[rank], rank)
    return tuple(_entry(pieces) for pieces in zip(*held, strict=True))


def _compare_values(first: dict[str, str], other: dict[str, str], rank: int) -> None:
    for stream in sorted(first.keys() | other.keys()):
        here, there = (one.get(stream, "nothing").strip() for one in (first, other))
        if here != there:
            raise CheckpointError(
                f"{stream}: process 0 holds {here} and process {rank} {there}; nothing was saved"
            )


def _compare_paths(first: list[_Described], other: list[_Described], rank: int) -> None:
    here, there = ({piece.path for piece in one} for one in (first, other))
    for path in sorted(here ^ there):
        which = f"0 and not process {rank}" if path in here else f"{rank} and not process 0"
        raise CheckpointError(f"{path}: process {which} lists it; nothing was saved")


def _entry(held: tuple[_Described, ...]) -> TensorEntry:
    """One tensor, from what each process holds of it."""
    first = held[0]
    for rank, piece in enumerate(held):
        _compare(first, piece, rank)
    parts = tuple(
        PartEntry(
            file=rank_name(rank),
            key=part_key(piece.path, tuple(piece.offsets)),
            offsets=tuple(piece.offsets),
            sizes=tuple(piece.sizes),
            sums=(piece.sums[0], piece.sums[1]),
        )
        for rank, piece in enumerate(held[:1] if first.replicated else held)
        if 0 not in piece.sizes
    )
    shape = tuple(first.shape)
    check_tiling(shape, [(part.offsets, part.sizes) for part in parts], first.path)
    return TensorEntry(
        stream=first.stream,
        name=first.name,
        dtype=first.dtype,
        shape=shape,
        sums=(_whole(first.dtype, shape, parts, 0), _whole(first.dtype, shape, parts, 1)),
        parts=parts,
    )


def _whole(dtype: str, shape: tuple[int, ...], parts: tuple[PartEntry, ...], table: int) -> str:
    merged = merge(Part(int(p.sums[table], 16), nbytes(dtype, p.sizes)) for p in parts)
    return hexadecimal(complete(merged, dtype, shape).sum)


def _compare(first: _Described, other: _Described, rank: int) -> None:
    """What is one tensor must be described alike everywhere, and a replica must have equal bits."""
    for word in ("dtype", "shape", "replicated"):
        here, there = getattr(first, word), getattr(other, word)
        if here != there:
            raise CheckpointError(
                f"{first.path}: {word} is {here} on process 0 and {there} on process {rank}"
            )
    if first.replicated and first.sums != other.sums:
        raise CheckpointError(
            f"{first.path}: the replica of process {rank} ({other.sums[0]}) differs from that of "
            f"process 0 ({first.sums[0]}); nothing was saved: find out when they parted"
        )
