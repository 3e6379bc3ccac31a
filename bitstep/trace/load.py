"""Load indexes: every entry up to the first that is not right, and what is wrong there.

1. The header is checked, then entries in pieces of a megabyte, each piece with one checksum.
2. Where a piece is not proven or an entry cannot be, its entries are looked at one by one, to
   name the first that is wrong.
3. `load_process` follows the chain from rotation to rotation.

    index = load_index(directory, FileName(0, 0), previous=NO_CHAIN)
    index.entries["root"], index.problem
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from bitstep.errors import TraceError
from bitstep.trace.files import open_plain
from bitstep.trace.index import (
    CLOSED,
    CONTINUED,
    ENTRY,
    HEADER,
    MAGIC,
    MAX_STEP_BYTES,
    NO_CHAIN,
    SUM_BYTES,
    Entries,
    FileName,
    IndexEntry,
    Proof,
    checksum,
    number,
)
from bitstep.trace.schema import check_version

_PIECE: Final = 20_000 * ENTRY.itemsize
"""Bytes read at a time: a sparse file of any size ends at its first piece of zeros."""
_NONE: Final = np.zeros(0, ENTRY)
_Problem = tuple[str, str]
"""Kind, "cut" or "damaged", and reason."""


@dataclass(frozen=True, slots=True)
class Index:
    """What an index vouches for: `entries` up to `problem`, the first thing that is not right."""

    name: FileName
    entries: Entries
    """With the end marker, if there is one."""
    chain: int
    """Of the last good entry, or of the header."""
    problem: str | None

    @property
    def end(self) -> int | None:
        """CLOSED, CONTINUED, or None for a file without an end marker."""
        last = int(self.entries["step"][-1]) if len(self.entries) else 0
        return last if last < 0 else None

    @property
    def steps(self) -> Entries:
        """The entries without the end marker."""
        return self.entries if self.end is None else self.entries[:-1]

    def __iter__(self) -> Iterator[IndexEntry]:
        return map(IndexEntry._make, self.entries.tolist())


def load_index(directory: Path, name: FileName, previous: int | None) -> Index:
    """Every entry of an index that is right, without reading the stream.

    `previous` is the chain of the rotation before, or None not to compare it. Raises TraceError
    for another format version or definition, and for a link; anything else is a `problem`.
    """
    path = directory / name.index
    file = open_plain(path)
    if file is None:
        return Index(name, _NONE, NO_CHAIN, f"cut: {name.index}: the index is missing")
    with file:
        header = file.read(HEADER.size)
        problem = _header_problem(path, header, name, previous)
        if problem:
            return Index(name, _NONE, NO_CHAIN, problem)
        return _load_entries(file, name, header)


def load_process(directory: Path, names: Sequence[FileName]) -> list[Index]:
    """The indexes of one process whose files are `names`, in order, up to one with a problem.

    A whole process has none: its last index is CLOSED, the others are CONTINUED.
    """
    indexes: list[Index] = []
    chain = NO_CHAIN
    for rotation, name in enumerate(names):
        expected = FileName(name.process, rotation)
        index = load_index(directory, expected, chain)
        if not index.problem:
            index = replace(index, problem=_rotation_problem(index, names))
        indexes.append(index)
        if index.problem:
            break
        chain = index.chain
    return indexes


def read_index(path: Path) -> tuple[IndexEntry, ...]:
    """The entries of one index file that are right, the end marker last if there is one.

    No end marker: the file was cut or is damaged, and `read_trace` says which. Raises TraceError
    for a name that is not an index's, a missing file, another format, another definition, a link.
    """
    for directory in path.parents[:2]:
        text = path.relative_to(directory).as_posix()
        name = FileName.parse(text)
        if name and text == name.index:
            if not path.exists():
                raise TraceError(f"{path}: no such index")
            return tuple(load_index(directory, name, None))
    raise TraceError(f"{path}: not the name of an index (rank-00000.000.index)")


def _rotation_problem(index: Index, names: Sequence[FileName]) -> str | None:
    """What is wrong with the place of a whole index among the files of its process, or None."""
    following = FileName(index.name.process, index.name.rotation + 1)
    last = index.name == names[-1]
    if index.end == CLOSED and not last:
        return f"damaged: {names[following.rotation].index}: it follows an end marker"
    if index.end != CLOSED and last:
        return f"cut: {following.stream}: the file is missing"
    return None


def _header_problem(path: Path, raw: bytes, name: FileName, previous: int | None) -> str | None:
    """What is wrong with a header, or None."""
    where = f"{name.index}, byte 0"
    if len(raw) < HEADER.size:
        return f"cut: {name.index}, byte {len(raw)}: the header is not whole"
    # The checksum first: a flipped bit must not pass for another format.
    if not raw.startswith(MAGIC) or checksum(raw[:-SUM_BYTES]) != number(raw[-SUM_BYTES:]):
        return f"damaged: {where}: this is no header of a bitstep index"
    _, version, process, rotation, _, definition, before, _ = HEADER.unpack(raw)
    check_version(str(path), version, definition.rstrip(b"\0").decode("ascii", "replace"))
    if FileName(process, rotation) != name:
        return f"damaged: {where}: written as {FileName(process, rotation).index}, and renamed"
    if previous is not None and before != previous:
        return f"damaged: {where}: it does not continue the file before it"
    return None


def _load_entries(file: BinaryIO, name: FileName, header: bytes) -> Index:
    proof = Proof(header)
    entries, before = _NONE, None
    problem: _Problem | None = None
    while not problem and (raw := file.read(_PIECE)):
        good = np.frombuffer(raw[: len(raw) // ENTRY.itemsize * ENTRY.itemsize], ENTRY)
        # Bytes that are not whole entries are no whole piece either: `_walk` says so.
        if good.nbytes < len(raw) or not _can_be(good, before) or not proof.holds(raw):
            right, problem = _walk(raw, proof, before, len(entries))
            good = good[:right]
        entries = np.concatenate((entries, good)) if len(entries) else good
        before = IndexEntry._make(good[-1].item()) if len(good) else before
    if not problem and not (before and before.step < 0):
        problem = ("cut", f"no end marker after {len(entries)} steps")
    chain = before.chain if before else number(header[-SUM_BYTES:])
    where = f"{name.index}, byte {HEADER.size + entries.nbytes}"
    return Index(name, entries, chain, f"{problem[0]}: {where}: {problem[1]}" if problem else None)


def _can_be(entries: Entries, before: IndexEntry | None) -> bool:
    """Whether `_cannot_be` has nothing to say of any entry; all at once."""
    if before and before.step < 0:
        return False
    step, end = entries["step"], entries["end"]
    marker = entries[-1:][step[-1:] < 0]
    steps = step[: len(step) - len(marker)]
    start = np.concatenate(([np.uint64(before.end if before else 0)], end[:-1]))
    size = end - start
    return bool(
        (end > start).all()
        and (size <= MAX_STEP_BYTES).all()
        and (entries["rows"] <= size).all()
        and (entries["dictionaries"] <= size).all()
        and (steps[:1] > (before.step if before else -1)).all()
        and (steps[1:] > steps[:-1]).all()
        and (marker["step"] >= CONTINUED).all()
        and not (marker["rows"] | marker["dictionaries"] | marker["root"]).any()
    )


def _walk(
    raw: bytes, proof: Proof, before: IndexEntry | None, steps: int
) -> tuple[int, _Problem | None]:
    """How many entries of `raw` are right, one by one, and the problem of the next.

    `steps`: how many came before.
    """
    for count, at in enumerate(range(0, len(raw), ENTRY.itemsize)):
        piece = raw[at : at + ENTRY.itemsize]
        following = f"the entry after {steps + count} steps"
        if before and before.step < 0:
            return count, ("damaged", "something follows the end marker")
        if len(piece) < ENTRY.itemsize:
            return count, ("cut", f"{following} is not whole")
        if not proof.holds(piece):
            return count, ("damaged", f"{following} fails its checksum")
        entry = IndexEntry._make(np.frombuffer(piece, ENTRY)[0].item())
        reason = _cannot_be(entry, before)
        if reason:
            return count, ("damaged", reason)
        before = entry
    return len(raw) // ENTRY.itemsize, None


def _cannot_be(entry: IndexEntry, before: IndexEntry | None) -> str | None:
    """Why an entry cannot follow the one before it, or None."""
    step, rows, dictionaries, root, end, _, _ = entry
    start = before.end if before else 0
    if not start < end <= start + MAX_STEP_BYTES:
        return f"a step of bytes {start} to {end} of the stream"
    if max(rows, dictionaries) > end - start:
        return f"{rows} rows and {dictionaries} dictionaries in {end - start} bytes"
    if step < 0 and (step < CONTINUED or rows or dictionaries or root):
        return (
            f"an end marker with step {step}, {rows} rows, {dictionaries} dictionaries and root "
            f"{root:016x}"
        )
    if 0 <= step <= (before.step if before else -1):
        return f"step {step} after step {before.step if before else -1}"
    return None
