"""Verify a checkpoint without a model, without torch, and without other processes.

1. `folder.open_folder`: names, sizes, marker, index, values, root.
2. Each file, read once: its header must be the one that follows from the index, each part must
   have the sums that were taken in memory before the write, and all bytes the recorded SHA-256.

    verify(run / "checkpoints" / "step-00000020").root
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from bitstep.checkpoint.folder import Folder, open_folder
from bitstep.checkpoint.format import INDEX, MARKER, VALUES, PartEntry, TensorEntry
from bitstep.checkpoint.rankfile import Bytes, opened, plan, read
from bitstep.checkpoint.sums import sums_of
from bitstep.errors import CheckpointError
from bitstep.fingerprint import nbytes
from bitstep.records import Box


@dataclass(frozen=True, slots=True)
class Report:
    """What was verified."""

    step: int
    root: int
    """The state root."""
    tensors: int
    """Logical tensors."""
    files: int
    """Files, JSON and marker included."""
    bytes: int
    """Bytes in all files."""


class Row(NamedTuple):
    """One line of `bitstep checkpoint show`."""

    tensor: str
    """Stream and name; of a value stream its name."""
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    digest: str
    """Sum of the fingerprint, first table, 16 hexadecimal digits; empty for a value stream."""
    parts: int


def verify(checkpoint: Path) -> Report:
    """Read every byte of a checkpoint and check it.

    Raises CheckpointError, naming the file and, where it can be told, the tensor.
    """
    folder = open_folder(checkpoint)
    check_files(folder, sorted(folder.index.files))
    names = [*folder.index.files, INDEX, MARKER]
    return Report(
        step=folder.index.step,
        root=int(folder.index.root, 16),
        tensors=len(folder.index.tensors),
        files=len(names),
        bytes=sum((folder.path / name).stat().st_size for name in names),
    )


def show(checkpoint: Path) -> list[Row]:
    """What a checkpoint holds, from its index and values; tensors are not read."""
    folder = open_folder(checkpoint)
    tensors = [
        Row(t.path, t.dtype, t.shape, nbytes(t.dtype, t.shape), t.sums[0], len(t.parts))
        for t in folder.index.tensors
    ]
    values = [Row(stream, "json", (), 0, "", 0) for stream in sorted(folder.values)]
    return tensors + values


def check_files(folder: Folder, names: Iterable[str]) -> None:
    """Read these files whole and check every byte. `state.json` was checked on opening."""
    for name in names:
        if name != VALUES:
            try:
                _check_rank_file(folder, name)
            except OSError as error:
                path = folder.path / name
                raise CheckpointError(f"cannot read {path}: {error.strerror}") from None


def _check_rank_file(folder: Folder, name: str) -> None:
    path, entry = folder.path / name, folder.index.files[name]
    parts = folder.parts[name]
    head, slots = plan((key, t.dtype, p.sizes) for key, (t, p) in parts.items())
    if len(head) + sum(slot.nbytes for slot in slots) != entry.bytes:
        raise CheckpointError(f"{path}: the index gives it {entry.bytes} bytes and other parts")
    with opened(path) as descriptor:
        if read(descriptor, 0, len(head), path).tobytes() != head:
            raise CheckpointError(
                f"{path}: the header is not the one of its parts: damaged, or of another step or "
                "process; use another checkpoint"
            )
        digest, damaged = sha256(head), ""
        for slot in slots:
            data = read(descriptor, slot.start, slot.nbytes, path)
            digest.update(data.data)
            if not _as_written(data, *parts[slot.key]):
                damaged = damaged or parts[slot.key][0].path
    if damaged:
        raise CheckpointError(
            f"{path}: {damaged} does not have the bits that were saved; use another checkpoint"
        )
    if digest.hexdigest() != entry.sha256:
        raise CheckpointError(f"{path}: wrong SHA-256 although its tensors are as saved")


def _as_written(data: Bytes, tensor: TensorEntry, part: PartEntry) -> bool:
    place = Box(tensor.shape, part.offsets, part.sizes)
    return sums_of(data, tensor.dtype, place) == part.sums
