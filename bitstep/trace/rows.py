"""Records to columns and back, and the checks that no row passes by.

1. `Words` gives each string of a column an id, once per file.
2. `encode` makes one Arrow batch of the records of one step.
3. `check_batch` refuses a batch that Arrow can read but that no writer of ours makes.
4. `decode` turns a checked batch back into records.

>>> from bitstep.records import Record, Site
>>> record = Record(0, Site(1, -1, "optimizer", "root"), 255, "uint64")
>>> list(decode(encode([record], Words()))) == [record]
True
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from bitstep.errors import TraceError
from bitstep.records import Box, FlatRange, Place, Record, Site
from bitstep.trace.schema import PLACE_TYPE, SCHEMA, WORD_COLUMNS


class Words:
    """The strings of one file, column by column, in order of first use; ids never change."""

    def __init__(self) -> None:
        self._ids: dict[str, dict[str, int]] = {name: {} for name in WORD_COLUMNS}
        self._arrays = {name: pa.array([], pa.utf8()) for name in WORD_COLUMNS}

    def column(self, name: str, words: Sequence[str]) -> Any:
        """A dictionary array: `words` by their ids. Extends the dictionary where needed."""
        ids = self._ids[name]
        rows = pa.array([ids.setdefault(word, len(ids)) for word in words], pa.int32())
        # The same array object as before when nothing is new: Arrow then skips comparing it.
        if len(self._arrays[name]) != len(ids):
            self._arrays[name] = pa.array(list(ids), pa.utf8())
        return pa.DictionaryArray.from_arrays(rows, self._arrays[name], safe=False)


def encode(records: Sequence[Record], words: Words) -> Any:
    """One record batch of `records`, in order, still to be checked by `check_batch`.

    Raises TraceError for a value that its column cannot hold.
    """
    fields = list(zip(*records, strict=True)) or [()] * 9
    seq, sites, digest, dtype, shape, place, version, writer, flags = fields
    names = list(zip(*sites, strict=True)) or [()] * 10
    step, rank, phase, slot, pass_, microbatch, module, op, occurrence, part = names
    # In the order of the schema, which is the order a person reads a row in.
    values = [seq, step, rank, phase, pass_, microbatch, module, op, occurrence, slot, part]
    values += [digest, dtype, shape, _place_column(place, shape), version, writer, flags]
    try:
        columns = [
            words.column(field.name, value)
            if field.name in WORD_COLUMNS
            else pa.array(value, field.type)
            for field, value in zip(SCHEMA, values, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise TraceError(f"a record does not fit the columns of a trace: {error}") from error


def _place_column(places: Sequence[Place | None], shapes: Sequence[tuple[int, ...]]) -> Any:
    if all(place is None for place in places):
        return pa.nulls(len(places), PLACE_TYPE)
    rows: list[dict[str, Any] | None] = []
    for place, shape in zip(places, shapes, strict=True):
        if place is None:
            rows.append(None)
            continue
        if place.shape != shape:
            raise TraceError(f"a part of a tensor of shape {place.shape} in a row of {shape}")
        if isinstance(place, Box):
            rows.append({"kind": "box", "offsets": place.offsets, "sizes": place.sizes})
        else:
            rows.append({"kind": "flat", "offsets": [place.start], "sizes": [place.nbytes]})
    return pa.array(rows, PLACE_TYPE)


def _check_place(row: Any, shape: Sequence[int]) -> None:
    """Raise TraceError unless a row of the place column lies inside `shape`."""
    offsets, sizes = row["offsets"], row["sizes"]
    inside = len(offsets) == len(sizes) and min([0, *offsets, *sizes]) >= 0
    if row["kind"] == "flat":
        inside = inside and len(offsets) == 1 and offsets[0] + sizes[0] < 2**63
    elif row["kind"] == "box":
        inside = inside and len(shape) == len(offsets)
        ends = zip(offsets, sizes, shape, strict=False)
        inside = inside and all(offset + size <= whole for offset, size, whole in ends)
    else:
        inside = False
    if not inside:
        raise TraceError(f"place {row} does not lie in a tensor of shape {tuple(shape)}")


def check_batch(batch: Any, step: int, rows: int, after: int) -> int:
    """The last seq of a batch that passes every check; else TraceError.

    `step` and `rows` are what the index says; `after` is the last seq before this batch. The
    writer calls it too, so that it never writes what a reader refuses. Arrow's own check comes
    first: without it a length that lies ends the process (docs/trace-format.md).
    """
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise TraceError(f"Arrow finds the batch invalid: {error}") from error
    if batch.num_rows != rows:
        raise TraceError(f"{batch.num_rows} rows where the index says {rows}")
    _check_nulls(batch)
    steps = batch.column("step").to_numpy()
    if np.any(steps != step):
        raise TraceError(f"a row of step {steps[steps != step][0]} in the batch of step {step}")
    seq = batch.column("seq").to_numpy()
    for before, now in pairwise((after, *seq.tolist())):
        if now <= before:
            raise TraceError(f"seq {now} comes after seq {before}: it must increase in a stream")
    if rows and min(batch.column("shape").flatten().to_numpy(), default=0) < 0:
        raise TraceError("a shape with a negative size")
    places = batch.column("place")
    if places.null_count < rows:
        shapes = batch.column("shape").to_pylist()
        for row, shape in zip(places.to_pylist(), shapes, strict=True):
            if row is not None:
                _check_place(row, shape)
    return int(seq[-1]) if rows else after


def _check_nulls(batch: Any) -> None:
    """Only place may be null. `nullable=False` is a label in Arrow, which checks nothing."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        nulls = column.null_count if name != "place" else 0
        if name in WORD_COLUMNS:
            nulls += column.dictionary.null_count
        if name == "shape":
            nulls += column.flatten().null_count
        if name == "place":
            kind, offsets, sizes = column.filter(column.is_valid()).flatten()
            nulls += kind.null_count + offsets.null_count + sizes.null_count
            nulls += offsets.flatten().null_count + sizes.flatten().null_count
        if nulls:
            raise TraceError(f"column {name} holds {nulls} nulls")


def decode(batch: Any) -> Iterator[Record]:
    """The records of a batch that `check_batch` has passed."""
    columns = {
        name: _strings(column) if name in WORD_COLUMNS else column.to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    for row in zip(*columns.values(), strict=True):
        seq, step, rank, phase, pass_, microbatch, module, op, occurrence, slot, part = row[:11]
        digest, dtype, shape, place, version, writer, flags = row[11:]
        site = Site(step, rank, phase, slot, pass_, microbatch, module, op, occurrence, part)
        whole = tuple(shape)
        yield Record(seq, site, digest, dtype, whole, _place(place, whole), version, writer, flags)


def _strings(column: Any) -> list[str]:
    words = column.dictionary.to_pylist()
    return [words[row] for row in column.indices.to_pylist()]


def _place(row: Any, shape: tuple[int, ...]) -> Place | None:
    if row is None:
        return None
    if row["kind"] == "flat":
        return FlatRange(shape, row["offsets"][0], row["sizes"][0])
    return Box(shape, tuple(row["offsets"]), tuple(row["sizes"]))
