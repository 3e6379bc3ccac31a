"""Restore the training state, in any layout, and show that it is the one that was saved.

1. The checkpoint is opened on every process; index and live state must list the same tensors.
2. The files are checked, split among the processes. Until all agree, nothing live is touched.
3. Each process reads what overlaps its own parts, straight into the live tensors.
4. Fingerprints are taken of what was loaded, added up over the processes and compared with those
   that were taken in memory before the write. Then the values are set.

    restore(run / "checkpoints" / "step-00000020", state, processes).root
"""

from __future__ import annotations

import copy
from collections.abc import Set
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from bitstep.checkpoint.entries import check_piece
from bitstep.checkpoint.folder import Folder, open_folder
from bitstep.checkpoint.format import INDEX, TensorEntry, hexadecimal, index_text
from bitstep.checkpoint.load import load
from bitstep.checkpoint.verify import check_files
from bitstep.errors import CheckpointError
from bitstep.state.roots import whole_fingerprints
from bitstep.state.streams import STREAMS
from bitstep.state.together import together

if TYPE_CHECKING:
    from bitstep.state.processes import Processes
    from bitstep.state.streams import Piece, TrainingState


@dataclass(frozen=True, slots=True)
class Restored:
    """What the live state now is."""

    step: int
    root: int
    """The state root of the checkpoint."""
    world: int
    """How many processes wrote it."""


def restore(
    checkpoint: Path, state: TrainingState, processes: Processes, omit: str | None = None
) -> Restored:
    """Load a checkpoint into the live state, in place, on every process.

    `omit` leaves one stream as it is, for a control. Raises CheckpointError on every process, with
    one message that names file and tensor. The live state is untouched then, except where what was
    loaded fails the last comparison (a fault of memory or disk after the check): start afresh.
    """
    if omit is not None and omit not in STREAMS:
        raise CheckpointError(f"unknown stream {omit!r} (known: {', '.join(STREAMS)})")
    found: list[Folder] = []
    _open_everywhere(Path(checkpoint), state, processes, omit, found)
    folder = found[0]
    mine = sorted(folder.index.files)[processes.rank :: processes.world]
    together(processes, lambda: check_files(folder, mine))
    pieces = sorted((p for p in state.pieces if p.stream != omit), key=lambda p: p.path)

    def fill() -> None:
        load(folder, pieces)
        _compare_replicas(folder, pieces)

    together(processes, fill)
    _compare(folder, pieces, processes)
    for stream, value in folder.values.items():
        if stream != omit:
            state.values[stream] = copy.deepcopy(value)
    index = folder.index
    return Restored(step=index.step, root=int(index.root, 16), world=index.world)


def _open_everywhere(
    checkpoint: Path,
    state: TrainingState,
    processes: Processes,
    omit: str | None,
    found: list[Folder],
) -> None:
    """Open on every process, and see that all opened the same one and expect what it holds."""

    def work() -> str:
        folder = open_folder(checkpoint)
        _match(folder, state, omit)
        found.append(folder)
        return sha256(index_text(folder.index)).hexdigest()

    digests = together(processes, work)

    def same() -> None:
        for rank, digest in enumerate(digests):
            if digest != digests[0]:
                raise CheckpointError(
                    f"process {rank} sees another {checkpoint / INDEX} than process 0: "
                    "put the checkpoints on a file system that all processes share"
                )

    together(processes, same)


def _match(folder: Folder, state: TrainingState, omit: str | None) -> None:
    """Raise CheckpointError unless checkpoint and live state list the same streams and tensors."""
    saved = {t.path: t for t in folder.index.tensors if t.stream != omit}
    live = {piece.path: piece for piece in state.pieces if piece.stream != omit}
    for piece in state.pieces:
        check_piece(piece)
    _same_names(folder.path, "tensor", saved.keys(), live.keys())
    _same_names(folder.path, "stream", folder.values.keys() - {omit}, state.values.keys() - {omit})
    for piece in live.values():
        entry = saved[piece.path]
        if entry.dtype != piece.dtype:
            raise CheckpointError(
                f"{piece.path} is {entry.dtype} in {folder.path} and {piece.dtype} here; "
                "nothing is cast: use the precision that it was saved with"
            )
        if entry.shape != tuple(piece.place.shape):
            raise CheckpointError(
                f"{piece.path} has shape {entry.shape} in {folder.path} and "
                f"{tuple(piece.place.shape)} here; use the recipe that it was saved with"
            )


def _same_names(path: Path, what: str, saved: Set[str], live: Set[str]) -> None:
    for name in sorted(live - saved):
        raise CheckpointError(f"{path} does not hold the {what} {name}, which the state has")
    for name in sorted(saved - live):
        raise CheckpointError(f"{path} holds the {what} {name}, which the state has not")


def _compare_replicas(folder: Folder, pieces: list[Piece]) -> None:
    """Each process looks at its own replicas: the sums over processes count only one."""
    from bitstep.fingerprint import fingerprint  # here, since it loads torch

    saved = {entry.path: entry for entry in folder.index.tensors}
    for piece in pieces:
        if piece.replicated:
            sums = [fingerprint(piece.tensor, table=table).sum for table in (1, 2)]
            _same(folder, saved[piece.path], sums)


def _compare(folder: Folder, pieces: list[Piece], processes: Processes) -> None:
    """Raise CheckpointError unless what was loaded, added up, is what was saved.

    The sums are the same on every process, and so is the outcome.
    """
    one, two = (whole_fingerprints(pieces, processes, table=table) for table in (1, 2))
    for entry in folder.index.tensors:
        if entry.path in one:
            _same(folder, entry, [one[entry.path].sum, two[entry.path].sum])


def _same(folder: Folder, entry: TensorEntry, sums: list[int]) -> None:
    if tuple(map(hexadecimal, sums)) != entry.sums:
        files = ", ".join(sorted({part.file for part in entry.parts}))
        raise CheckpointError(
            f"{entry.path} from {files} in {folder.path} has other bits after the load "
            f"({hexadecimal(sums[0])}, saved {entry.sums[0]}); suspect the memory, start afresh"
        )
