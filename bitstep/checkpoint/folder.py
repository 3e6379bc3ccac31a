"""Open a checkpoint: everything that can be known before a tensor is read. No torch.

1. The folder: plain files only, no link, the marker there.
2. The marker vouches for the index, byte for byte.
3. The index makes sense: its parts tile each tensor, their sums add up to its digest, and the
   files are exactly those in the folder, with the right sizes.
4. `state.json` is the file that was written, and the root is that of tensors and values.

What passes is safe to read: every name is one of ours, every size was compared with the disk.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from bitstep.checkpoint.format import (
    INDEX,
    MARKER,
    VALUES,
    Index,
    Json,
    PartEntry,
    TensorEntry,
    check_marker,
    hexadecimal,
    parse,
    parse_index,
    part_key,
    rank_name,
    step_name,
    step_of,
)
from bitstep.checkpoint.rankfile import opened, read
from bitstep.errors import CheckpointError, FingerprintError
from bitstep.fingerprint import complete, merge, nbytes
from bitstep.records import Fingerprint, Part
from bitstep.state.roots import state_root
from bitstep.state.streams import STREAMS

_LIMIT = 1 << 31
"""Largest JSON file that is read into memory, in bytes."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A checkpoint that is whole as far as can be told without reading its tensors."""

    path: Path
    index: Index
    values: dict[str, dict[str, Json]]
    parts: dict[str, dict[str, tuple[TensorEntry, PartEntry]]]
    """By file of a process, the parts in it by key."""


def open_folder(path: Path) -> Folder:
    """Open a checkpoint. Raises CheckpointError, naming the file, for whatever is not right."""
    try:
        return _open(Path(path))
    except OSError as error:
        raise CheckpointError(f"cannot read {error.filename or path}: {error.strerror}") from None


def _open(path: Path) -> Folder:
    sizes = _listing(path)
    if MARKER not in sizes:
        raise CheckpointError(f"{path} has no {MARKER}: its save did not finish; use another one")
    marker = _read_whole(path / MARKER, min(sizes[MARKER], 4096))
    if INDEX not in sizes:
        raise CheckpointError(f"{path / INDEX} is missing; use another checkpoint")
    text = _read_whole(path / INDEX, sizes[INDEX])
    check_marker(marker, text, str(path))
    index = parse_index(text, str(path / INDEX))
    if path.name.startswith("step-") and step_of(path.name) != index.step:
        raise CheckpointError(
            f"{path / INDEX} is of step {index.step} and belongs in {step_name(index.step)}"
        )
    _check_files(path, index, sizes)
    paths = [entry.path for entry in index.tensors]
    if paths != sorted(set(paths)):
        raise CheckpointError(f"{path / INDEX} does not list its tensors once and in order")
    parts: dict[str, dict[str, tuple[TensorEntry, PartEntry]]]
    parts = {name: {} for name in index.files if name != VALUES}
    for entry in index.tensors:
        _check_tensor(path, index, entry)
        for part in entry.parts:
            parts[part.file][part.key] = (entry, part)
    return Folder(path, index, _read_values(path, index), parts)


def _listing(path: Path) -> dict[str, int]:
    """The size of every file in the folder. Anything but a plain file is refused."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise CheckpointError(f"{path} is not a folder; name the folder of one step")
    sizes = {}
    with os.scandir(path) as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                raise CheckpointError(f"{entry.path} is not a plain file; use another checkpoint")
            sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
    return sizes


def _read_whole(path: Path, size: int) -> bytes:
    if size > _LIMIT:
        raise CheckpointError(f"{path} has {size} bytes, more than {_LIMIT}: not one of ours")
    with opened(path) as descriptor:
        return read(descriptor, 0, size, path).tobytes()


def _check_files(path: Path, index: Index, sizes: dict[str, int]) -> None:
    """The folder holds what the index lists, and the index lists what a checkpoint has."""
    listed = {name: entry.bytes for name, entry in index.files.items()}
    if len(listed) != index.world + 1 or VALUES not in listed:
        raise CheckpointError(
            f"{path / INDEX} lists other files than {index.world} processes write"
        )
    for rank in range(index.world):
        if rank_name(rank) not in listed:
            raise CheckpointError(f"{path / INDEX} does not list {rank_name(rank)}")
    for name in sorted(listed.keys() - sizes.keys()):
        raise CheckpointError(f"{path / name} is missing; use another checkpoint")
    for name in sorted(sizes.keys() - listed.keys() - {INDEX, MARKER}):
        raise CheckpointError(f"{path / name} is not part of this checkpoint: a stale file?")
    for name, size in sorted(listed.items()):
        if sizes[name] != size:
            raise CheckpointError(
                f"{path / name} has {sizes[name]} bytes and was written with {size}: truncated, "
                "or of another step or process; use another checkpoint"
            )


def _check_tensor(path: Path, index: Index, entry: TensorEntry) -> None:
    """The parts are parts of this tensor, cover it once, and add up to its digest."""
    name = f"{path / INDEX}: {entry.path}"
    if entry.stream not in STREAMS:
        raise CheckpointError(
            f"{name}: unknown stream {entry.stream!r} (known: {', '.join(STREAMS)}): "
            "install a newer bitstep"
        )
    for part in entry.parts:
        if part.file == VALUES or part.file not in index.files:
            raise CheckpointError(f"{name}: {part.file!r} is not the file of a process")
        if part.key != part_key(entry.path, part.offsets):
            raise CheckpointError(f"{name}: {part.key!r} is not the key of this part")
    try:
        check_tiling(entry.shape, [(part.offsets, part.sizes) for part in entry.parts], name)
        for table in (0, 1):
            parts = [
                Part(int(part.sums[table], 16), nbytes(entry.dtype, part.sizes))
                for part in entry.parts
            ]
            whole = complete(merge(parts), entry.dtype, entry.shape)
            if hexadecimal(whole.sum) != entry.sums[table]:
                raise CheckpointError(f"{name}: the part sums do not add up to the digest")
    except FingerprintError as error:
        raise CheckpointError(f"{name}: {error}") from None


def check_tiling(
    shape: tuple[int, ...],
    boxes: list[tuple[tuple[int, ...], tuple[int, ...]]],
    name: str,
) -> None:
    """Raise CheckpointError unless the boxes (offsets, sizes) cover the shape exactly once.

    Counting bytes alone would pass a part that is there twice while another one is missing.
    """
    for offsets, sizes in boxes:
        inside = len(offsets) == len(sizes) == len(shape) and all(
            size > 0 and offset + size <= whole
            for offset, size, whole in zip(offsets, sizes, shape, strict=True)
        )
        if not inside:
            raise CheckpointError(f"{name}: a part at {offsets} of {sizes} is not inside {shape}")
    starts = np.array([box[0] for box in boxes], dtype=np.int64).reshape(len(boxes), len(shape))
    ends = starts + np.array([box[1] for box in boxes], dtype=np.int64).reshape(starts.shape)
    for number in range(1, len(boxes)):
        before, after = ends[:number] > starts[number], starts[:number] < ends[number]
        if bool((before & after).all(axis=1).any()):
            raise CheckpointError(f"{name}: the part at {boxes[number][0]} overlaps another one")
    covered = sum(_elements(sizes) for _, sizes in boxes)
    if covered != _elements(shape):
        raise CheckpointError(f"{name}: the parts hold {covered} of {_elements(shape)} elements")


def _elements(sizes: tuple[int, ...]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def _read_values(path: Path, index: Index) -> dict[str, dict[str, Json]]:
    """The value streams; their bytes are checked before they are parsed, and the root after."""
    entry, name = index.files[VALUES], path / VALUES
    text = _read_whole(name, entry.bytes)
    if sha256(text).hexdigest() != entry.sha256:
        raise CheckpointError(f"{name} is not the file that was written; use another checkpoint")
    values = parse(text, str(name))
    if type(values) is not dict or not all(type(value) is dict for value in values.values()):
        raise CheckpointError(f"{name} does not hold streams; use another checkpoint")
    for stream in values:
        if stream not in STREAMS:
            raise CheckpointError(
                f"{name}: unknown stream {stream!r} (known: {', '.join(STREAMS)}): "
                "install a newer bitstep"
            )
    if hexadecimal(state_root(tensor_fingerprints(index), values)) != index.root:
        raise CheckpointError(f"{path / INDEX}: the root is not that of its tensors and values")
    return values


def tensor_fingerprints(index: Index) -> dict[str, Fingerprint]:
    """The fingerprint of every tensor, by path, as the index has it."""
    return {
        entry.path: Fingerprint(int(entry.sums[0], 16), entry.dtype, entry.shape)
        for entry in index.tensors
    }
