"""The indexes of a directory without its streams: what two long runs are compared by.

1. `read_indexes` loads every index, and asks for no more of a stream than its size.
2. `ProcessIndex` holds the steps of one process as arrays.
3. `TraceIndex.batches` then reads the rows of chosen steps, checked.

    index = read_indexes(run / "attempt-000")
    roots = dict(zip(index.process(0).step.tolist(), index.process(0).root.tolist()))
    found = index.batch(0, step=17)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bitstep.errors import TraceError
from bitstep.trace.files import list_files, plain_size
from bitstep.trace.index import CLOSED, ENTRY, Entries, FileName, IndexEntry
from bitstep.trace.load import Index, load_process
from bitstep.trace.stream import BadStream, too_short, whole_batches


class StepBatch(NamedTuple):
    """The rows of one step of a process, or why they cannot be had."""

    step: int
    batch: Any
    """A checked pyarrow.RecordBatch; None where there is `damage`."""
    damage: str | None
    """A line like those of `Trace.damage`."""
    rotation: int
    """Ids of words hold within one rotation of one process, where they never change."""


@dataclass(frozen=True)
class ProcessIndex:
    """The steps of one process, over all its files, as far as they are whole."""

    process: int
    files: tuple[Index, ...]
    damage: tuple[str, ...]
    """What its indexes and the sizes of its streams show; the bytes of the streams are not read."""

    @property
    def closed(self) -> bool:
        """Its end marker is there."""
        return bool(self.files) and self.files[-1].end == CLOSED

    @property
    def step(self) -> npt.NDArray[np.int64]:
        """Strictly increasing; the other arrays are as long."""
        return self._steps["step"]

    @property
    def rows(self) -> npt.NDArray[np.uint32]:
        return self._steps["rows"]

    @property
    def dictionaries(self) -> npt.NDArray[np.uint32]:
        """Dictionary messages in the bytes of the step: 0 for most steps after the first ones."""
        return self._steps["dictionaries"]

    @property
    def root(self) -> npt.NDArray[np.uint64]:
        return self._steps["root"]

    @property
    def end(self) -> npt.NDArray[np.uint64]:
        """Byte where the step ends, in its file."""
        return self._steps["end"]

    @property
    def bytes_sum(self) -> npt.NDArray[np.uint64]:
        """Checksum of the step's bytes. Equal rows have equal bytes, and so equal sums, after
        equal words: those of all earlier steps of the file with `dictionaries`."""
        return self._steps["bytes_sum"]

    @cached_property
    def _steps(self) -> Entries:
        parts = [index.steps for index in self.files]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.zeros(0, ENTRY)


@dataclass(frozen=True)
class TraceIndex:
    """The steps of every process that recorded into `directory`."""

    directory: Path
    processes: tuple[int, ...]
    damage: tuple[str, ...]
    """What is cut or damaged as far as indexes and sizes show it, one line each."""
    complete: bool
    """Every stream was closed by its end marker, and no damage is known."""
    _of: dict[int, ProcessIndex] = field(repr=False)

    def process(self, process: int) -> ProcessIndex:
        """Raises TraceError for a process that recorded nothing here."""
        if process not in self._of:
            raise TraceError(f"{self.directory}: holds no trace of process {process}")
        return self._of[process]

    def batches(self, process: int, steps: Iterable[int] | None = None) -> Iterator[StepBatch]:
        """The rows of `steps` (default: all), by step; a step that the index lacks is left out.

        Damage is a value: where the bytes of a step are not right, its StepBatch holds a line
        and no batch, and nothing follows it, because words and order hang on what came before.
        Bytes of steps that are not asked for are read, and so may be damaged, only where they
        bring words. Raises TraceError for other columns and for a link, as `read_trace` does.
        """
        wanted = None if steps is None else frozenset(steps)
        seq = -1
        for index in self.process(process).files:
            if not len(index.entries):
                continue
            rotation = index.name.rotation
            try:
                for entry, batch in whole_batches(self.directory, index, seq, wanted):
                    if batch.num_rows:
                        seq = batch.column("seq")[-1].as_py()
                    yield StepBatch(entry.step, batch, None, rotation)
            except BadStream as bad:
                yield StepBatch(bad.step, None, bad.line, rotation)
                return

    def batch(self, process: int, step: int) -> StepBatch | None:
        """The rows of one step; None if the index lacks it. Many steps are read faster by
        `batches`, which reads the words of a file once."""
        return next(self.batches(process, (step,)), None)


def read_indexes(directory: Path) -> TraceIndex:
    """All that the indexes of `directory` vouch for, as far as the streams are long enough.

    Never raises for a cut or damaged file. Raises TraceError for a missing directory, another
    format version or definition, and for a link among the files.
    """
    names, damage = list_files(directory)
    found = {}
    for process, mine in by_process(names):
        found[process] = _read_process(directory, process, mine)
        damage += found[process].damage
    if not names:
        damage.append(f"cut: {directory.name}: no trace file")
    complete = not damage and all(index.closed for index in found.values())
    return TraceIndex(directory, tuple(found), tuple(damage), complete, found)


def by_process(names: Sequence[FileName]) -> Iterator[tuple[int, list[FileName]]]:
    """Names in order, process by process."""
    for process, mine in groupby(names, key=lambda name: name.process):
        yield process, list(mine)


def problem_line(problem: str, at: FileName, names: Sequence[FileName]) -> str:
    """A line of damage that ends the reading of a process at one of its files."""
    unread = sum(later > at for later in names)
    return problem + (f"; {unread} later files of the process were not read" if unread else "")


def _read_process(directory: Path, process: int, names: list[FileName]) -> ProcessIndex:
    files = []
    for index in load_process(directory, names):
        fitting = _cut_to_size(directory, index)
        files.append(fitting)
        if fitting.problem:
            line = problem_line(fitting.problem, fitting.name, names)
            return ProcessIndex(process, tuple(files), (line,))
    return ProcessIndex(process, tuple(files), ())


def _cut_to_size(directory: Path, index: Index) -> Index:
    """`index` without the entries that its stream is too short for."""
    name = index.name.stream
    size = plain_size(directory / name)
    if size is None:
        return cut_back(index, 0, f"cut: {name}, byte 0: the stream is missing")
    whole = int(np.searchsorted(index.entries["end"], size, side="right"))
    if whole < len(index.entries):
        entry = IndexEntry._make(index.entries[whole].item())
        return cut_back(index, whole, too_short(name, size, entry).line)
    return index


def cut_back(index: Index, whole: int, problem: str) -> Index:
    """`index` with its first `whole` entries. The damage of a stream says more than an index that
    merely has no end marker; a damaged index has said more already."""
    if (index.problem or "").startswith("damaged"):
        problem = str(index.problem)
    return replace(index, entries=index.entries[:whole], problem=problem)
