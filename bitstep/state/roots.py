"""From the live streams to roots: 64 bits for each stream, and 64 for the whole state.

1. Every process sums the fingerprints of its own parts (no gather: the definition is linear).
2. One integer all-reduce adds the parts of all processes, sums and byte counts.
3. The root of a stream is the digest of its (name, fingerprint) pairs; the state root that of all.

Replicated pieces are counted once, on process 0; the checkpoint is where replicas are compared.
What needs no tensor here needs no torch: a checkpoint is verified where torch is not installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bitstep.fingerprint import complete, root
from bitstep.fingerprint.definition import sum_of
from bitstep.records import Fingerprint, Part

if TYPE_CHECKING:
    from bitstep.state.processes import Processes
    from bitstep.state.streams import Piece

_SIGN = 1 << 63


def whole_fingerprints(
    pieces: Sequence[Piece], processes: Processes, table: int = 1
) -> dict[str, Fingerprint]:
    """The fingerprint of each logical tensor, by path, from the parts of all processes.

    Every process must pass the same paths in the same order. Raises FingerprintError if the parts
    do not cover a tensor exactly once.
    """
    import torch

    counted = [_part(piece, processes, table) for piece in pieces]
    totals = torch.tensor([[_signed(p.sum), p.nbytes] for p in counted], dtype=torch.int64)
    processes.sum_int64(totals)
    return {
        piece.path: complete(Part(total % 2**64, nbytes), piece.dtype, piece.place.shape)
        for piece, (total, nbytes) in zip(pieces, totals.reshape(-1, 2).tolist(), strict=True)
    }


def _part(piece: Piece, processes: Processes, table: int) -> Part:
    if piece.replicated and processes.rank > 0:
        return Part(0, 0)
    from bitstep.fingerprint import part  # loads torch

    return part(piece.tensor, piece.place, table=table)


def value_fingerprint(value: Mapping[str, Any]) -> Fingerprint:
    """The fingerprint of a JSON stream: of its canonical text, as bytes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return Fingerprint(sum_of(text), "uint8", (len(text),))


def state_root(tensors: Mapping[str, Fingerprint], values: Mapping[str, Mapping[str, Any]]) -> int:
    """The state root: what a commit hash is to a source tree. Equal roots, equal training state."""
    streams = {stream: value_fingerprint(value) for stream, value in values.items()}
    return root({**tensors, **streams})


def _signed(number: int) -> int:
    return number - 2 * _SIGN if number >= _SIGN else number
