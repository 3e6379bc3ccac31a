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

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bitstep.errors import TraceError
from bitstep.records import Box, FlatRange, Place, Record, Site
from bitstep.trace.schema import PLACE_TYPE, SCHEMA, WORD_COLUMNS

HEAD_WORDS: Final = ("phase", "pass", "module", "op")
"""The columns of strings that rows of one call share."""

FIT_ERRORS: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)
"""What Arrow and NumPy raise for a value that a column cannot hold."""


def does_not_fit(error: Exception) -> TraceError:
    return TraceError(f"a record does not fit the columns of a trace: {error}")


class _Ids(dict[Any, int]):
    """Values to ids, in order of first use."""

    def __missing__(self, value: Any) -> int:
        self[value] = number = len(self)
        return number

    def of(self, values: Sequence[Any]) -> npt.NDArray[np.int32]:
        # `map` of a bound method stays in C: 30 ns a value, where a comprehension takes 50.
        return np.fromiter(map(self.__getitem__, values), np.int32, len(values))


class Words:
    """The strings of one file, column by column, in order of first use; ids never change."""

    def __init__(self) -> None:
        self._ids = {name: _Ids() for name in WORD_COLUMNS}
        self._arrays = {name: pa.array([], pa.utf8()) for name in WORD_COLUMNS}

    def ids(self, name: str, words: Sequence[str]) -> npt.NDArray[np.int32]:
        """The ids of `words` in a column; new ones extend its dictionary."""
        return self._ids[name].of(words)

    def known(self, field: str) -> int:
        """How many words the columns of a field have had so far."""
        columns = HEAD_WORDS if field == "head" else (field,)
        return sum(len(self._ids[name]) for name in columns if name in self._ids)

    def column(self, name: str, ids: npt.NDArray[np.int32]) -> Any:
        """A dictionary array of `ids`, with every word that the column has had so far."""
        known, array = self._ids[name], self._arrays[name]
        # The same array object as before when nothing is new: Arrow then skips comparing it.
        if len(array) != len(known):
            new = pa.array(list(known)[len(array) :], pa.utf8())
            array = self._arrays[name] = pa.concat_arrays([array, new])
        return pa.DictionaryArray.from_arrays(pa.array(ids), array, safe=False)


def distinct(values: Sequence[Any]) -> tuple[list[Any], npt.NDArray[np.int32]]:
    """The different values in order of first use, and for each value its position there."""
    ids = _Ids()
    positions = ids.of(values)
    return list(ids), positions


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
    values += [digest, dtype, shape, place_column(place, shape), version, writer, flags]
    try:
        columns = [
            words.column(field.name, words.ids(field.name, value))
            if field.name in WORD_COLUMNS
            else pa.array(value, field.type)
            for field, value in zip(SCHEMA, values, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    except FIT_ERRORS as error:
        raise does_not_fit(error) from error


def shape_column(shapes: Sequence[tuple[int, ...]]) -> Any:
    different, position = distinct(shapes)
    return pa.array(different, SCHEMA.field("shape").type).take(pa.array(position))


def place_column(places: Sequence[Place | None], shapes: Sequence[tuple[int, ...]]) -> Any:
    if places.count(None) == len(places):
        return pa.nulls(len(places), PLACE_TYPE)
    different, position = distinct(list(zip(places, shapes, strict=True)))
    rows = [_place_row(place, shape) for place, shape in different]
    return pa.array(rows, PLACE_TYPE).take(pa.array(position))


def _place_row(place: Place | None, shape: tuple[int, ...]) -> dict[str, Any] | None:
    if place is None:
        return None
    if place.shape != shape:
        raise TraceError(f"a part of a tensor of shape {place.shape} in a row of {shape}")
    if isinstance(place, Box):
        return {"kind": "box", "offsets": place.offsets, "sizes": place.sizes}
    return {"kind": "flat", "offsets": [place.start], "sizes": [place.nbytes]}


def check_batch(batch: Any, step: int, rows: int, after: int, passed: Collection[str] = ()) -> int:
    """The last seq of a batch that passes every check; else TraceError.

    `step` and `rows` are what the index says; `after` is the last seq before this batch. The
    writer calls it too, so that it never writes what a reader refuses; it names the columns that
    have `passed` in the batch before. Arrow's own check comes first: without it a length that lies
    ends the process (docs/trace-format.md).
    """
    whole = batch
    if passed:
        batch = batch.select([name for name in batch.schema.names if name not in passed])
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
    before = np.concatenate(([after], seq[:-1]))[:rows]
    if np.any(seq <= before):
        at = int(np.argmax(seq <= before))
        raise TraceError(
            f"seq {seq[at]} comes after seq {before[at]}: it must increase in a stream"
        )
    if "shape" not in passed and np.any(batch.column("shape").flatten().to_numpy() < 0):
        raise TraceError("a shape with a negative size")
    if "place" not in passed:
        _check_places(whole)
    return int(seq[-1]) if rows else after


def _check_nulls(batch: Any) -> None:
    """Only place may be null. `nullable=False` is a label in Arrow, which checks nothing."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name == "place" and column.null_count == len(column):
            continue
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


def _check_places(batch: Any) -> None:
    """Raise TraceError unless every place lies inside the shape of its row."""
    places = batch.column("place")
    if places.null_count == len(places):
        return
    present = places.is_valid()
    kind, offsets, sizes = places.filter(present).flatten()
    shape = batch.column("shape").filter(present)
    rank, count = _lengths(shape), _lengths(offsets)
    box, flat = _equal(kind, "box"), _equal(kind, "flat")
    inside = (count == _lengths(sizes)) & (box & (count == rank) | flat & (count == 1))
    if inside.all():
        # Of a flat part only the sum must not overflow; bytes per element are not known here.
        row = np.repeat(np.arange(len(inside)), count)
        offset, size = offsets.flatten().to_numpy(), sizes.flatten().to_numpy()
        whole = np.full(len(row), 2**63 - 1)
        whole[box[row]] = shape.filter(pa.array(box)).flatten().to_numpy()
        inside[row[(offset < 0) | (size < 0)]] = False
        inside[row[(size > whole - np.maximum(offset, 0))]] = False
    if not inside.all():
        at = pa.array([int(np.argmin(inside))])
        place, lies = places.filter(present).take(at)[0].as_py(), shape.take(at)[0].as_py()
        raise TraceError(f"place {place} does not lie in a tensor of shape {tuple(lies)}")


def _lengths(lists: Any) -> npt.NDArray[np.int32]:
    lengths: npt.NDArray[np.int32] = np.diff(lists.offsets.to_numpy())
    return lengths


def _equal(words: Any, word: str) -> npt.NDArray[np.bool_]:
    import pyarrow.compute as pc  # Here: it is a third of the time to import this room.

    result: npt.NDArray[np.bool_] = pc.equal(words, word).to_numpy(zero_copy_only=False)
    return result


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
