"""Read the traces of a directory: all that is whole, and a list of what is not.

1. `read_trace` lists the files and orders them by process and rotation.
2. Each index is read up to its first wrong entry (`bitstep.trace.load`).
3. Arrow is given only bytes whose checksum the index vouches for, one step at a time, then
   validates them; then `check_batch` looks at what Arrow does not.
4. Reading a process stops at the first thing that is not right, which becomes a line of
   `damage`. Damage is never a difference between two runs: it makes them unverified.

    trace = read_trace(run / "attempt-000")
    for record in trace.records(process=0): ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from bitstep.errors import TraceError
from bitstep.records import Record
from bitstep.trace.files import list_files
from bitstep.trace.index import CLOSED, FileName, checksum
from bitstep.trace.indexes import by_process, cut_back, problem_line
from bitstep.trace.load import Index, load_process
from bitstep.trace.rows import decode
from bitstep.trace.schema import SCHEMA
from bitstep.trace.stream import BadStream, whole_batches


@dataclass(frozen=True, slots=True)
class Trace:
    """The whole steps of every process that recorded into `directory`."""

    directory: Path
    processes: tuple[int, ...]
    steps: dict[int, int]
    """Step to root: the root that all processes name, or a checksum over their different roots."""
    damage: tuple[str, ...]
    """What is cut or damaged, one line each: "cut: FILE, byte N: ..." or "damaged: ..."."""
    complete: bool
    """Every stream was closed by its end marker, and nothing is damaged."""
    _indexes: tuple[Index, ...]

    def records(self, process: int | None = None) -> Iterator[Record]:
        """The records of all processes or of one, by process and seq.

        Reads the files again, step by step: memory is one step's. Raises TraceError if they
        changed since `read_trace`.
        """
        for _, batch in self._batches(process):
            yield from decode(batch)

    def table(self) -> Any:
        """All rows as one pyarrow.Table: the columns of the file, and `process` before them."""
        head = pa.field("process", pa.uint32(), nullable=False)
        schema = pa.schema([head, *SCHEMA], metadata=SCHEMA.metadata)
        batches = []
        for process, batch in self._batches(None):
            first = pa.repeat(pa.scalar(process, pa.uint32()), batch.num_rows)
            batches.append(pa.RecordBatch.from_arrays([first, *batch.columns], schema=schema))
        return pa.Table.from_batches(batches, schema).unify_dictionaries()

    def roots(self, process: int) -> dict[int, int]:
        """Step to the root that one process named."""
        return _roots([index for index in self._indexes if index.name.process == process])

    def _batches(self, process: int | None) -> Iterator[tuple[int, Any]]:
        for index in self._indexes:
            # Without entries there may be no stream; `damage` has said so.
            if len(index.entries) and process in (None, index.name.process):
                try:
                    for _, batch in whole_batches(self.directory, index, -1):
                        yield index.name.process, batch
                except BadStream as bad:
                    raise TraceError(f"{bad.line}: the file changed while it was read") from bad


def read_trace(directory: Path) -> Trace:
    """All that is whole in the trace files of `directory`.

    Never raises for a cut or damaged file. Raises TraceError for a missing directory, another
    format version or definition, other columns, and for a link among the files.
    """
    names, damage = list_files(directory)
    indexes: list[Index] = []
    complete = bool(names)
    for _, mine in by_process(names):
        whole, problems = _read_process(directory, mine)
        indexes += whole
        damage += problems
        complete = complete and bool(whole) and whole[-1].end == CLOSED
    if not names:
        damage.append(f"cut: {directory.name}: no trace file")
    return Trace(
        directory,
        tuple(process for process, _ in by_process(names)),
        _roots(indexes),
        tuple(damage),
        complete and not damage,
        tuple(indexes),
    )


def _read_process(directory: Path, names: Sequence[FileName]) -> tuple[list[Index], list[str]]:
    """The indexes of one process, each cut back to what its stream holds, up to a problem."""
    whole: list[Index] = []
    seq = -1
    for index in load_process(directory, names):
        good, seq = _read_stream(directory, index, seq)
        whole.append(good)
        if good.problem:
            return whole, [problem_line(good.problem, good.name, names)]
    return whole, []


def _read_stream(directory: Path, index: Index, seq: int) -> tuple[Index, int]:
    """`index` without the entries that its stream does not bear out, and the last seq."""
    good = 0
    try:
        for _, batch in whole_batches(directory, index, seq):
            seq = batch.column("seq")[-1].as_py() if batch.num_rows else seq
            good += 1
    except BadStream as bad:
        return cut_back(index, good, bad.line), seq
    return index, seq


def _roots(indexes: Sequence[Index]) -> dict[int, int]:
    """The root of each step over all processes; see `Trace.steps`."""
    named: dict[int, list[tuple[int, int]]] = {}
    for index in indexes:
        steps = index.steps
        for step, root in zip(steps["step"].tolist(), steps["root"].tolist(), strict=True):
            named.setdefault(step, []).append((index.name.process, root))
    return {step: _join(named[step]) for step in sorted(named)}


def _join(roots: Sequence[tuple[int, int]]) -> int:
    """One root of (process, root) pairs. Equal ones are the root itself, so that the state root
    of a step does not depend on how many processes name it."""
    if len({root for _, root in roots}) == 1:
        return roots[0][1]
    return checksum(*(number.to_bytes(8, "little") for pair in roots for number in pair))
