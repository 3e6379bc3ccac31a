"""The rows of one step of one process as NumPy columns, with one numbering of words for both runs.

1. `Codes` numbers each string once, whichever file it came from: equal words, equal numbers.
2. `Decoder` turns checked batches of one process into `Rows`; it knows the words of its file.
3. `Rows` answers questions about one row, where a person will read the answer.

    rows = Decoder(codes).rows(batch)
    codes.words[rows.slot[0]]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bitstep.errors import TraceError
from bitstep.records import Flag
from bitstep.trace.schema import WORD_COLUMNS, metric_value

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.int32]
Sums = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_NUMBERS: Final = ("float32", "float64", "int64")


class Codes:
    """Strings of both runs by number, in order of first use."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, word: str) -> int:
        """The number of a word, a new one if it is new."""
        known = self._numbers.setdefault(word, len(self.words))
        if known == len(self.words):
            self.words.append(word)
        return known


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One step of one process. Row i is element i of every column, in the order of `seq`."""

    codes: Codes
    step: int
    """Local to its attempt."""
    seq: Ints
    rank: Words
    phase: Words
    pass_: Words
    microbatch: Words
    module: Words
    op: Words
    occurrence: Words
    slot: Words
    part: Words
    digest: Sums
    dtype: Words
    form: Sums
    """A number for shape and place together: equal ones, equal numbers."""
    writer: Ints
    flags: npt.NDArray[np.uint32]
    shapes: Any = field(repr=False)
    """The Arrow column, for the few shapes that a person sees."""

    def __len__(self) -> int:
        return len(self.seq)

    def text(self, name: str, row: int) -> str:
        """The word of a column at a row."""
        number: int = getattr(self, name)[row]
        return self.codes.words[number]

    def shape(self, row: int) -> tuple[int, ...]:
        return tuple(self.shapes[row].as_py())

    def value(self, row: int) -> str | None:
        """The number at a row of a metric, an argument or a scalar; None for a fingerprint."""
        slot, dtype = self.text("slot", row), self.text("dtype", row)
        is_number = slot.startswith(("metric.", "args.")) or self.flags[row] & Flag.SCALAR
        if not is_number or dtype not in _NUMBERS:
            return None
        try:
            value = metric_value(int(self.digest[row]), dtype)
        except TraceError:
            return None
        return f"{value:.9g}" if dtype == "float32" else repr(value)

    def at_seq(self, seq: int) -> int | None:
        """The row with this `seq`, if the step holds it."""
        row = int(np.searchsorted(self.seq, seq))
        return row if row < len(self) and self.seq[row] == seq else None


class Decoder:
    """Batches of one process to `Rows`, in the order in which they are read."""

    def __init__(self, codes: Codes) -> None:
        self._codes = codes
        self._known: dict[str, tuple[Any, Words]] = {}

    def rows(self, batch: Any) -> Rows:
        """The columns of a batch that the reader has checked."""
        steps = batch.column("step")
        words: dict[str, Any] = {
            name: self._words(name, batch.column(name)) for name in WORD_COLUMNS
        }
        plain: dict[str, Any] = {
            name: batch.column(name).to_numpy()
            for name in ("seq", "rank", "microbatch", "occurrence", "digest", "writer", "flags")
        }
        pass_ = words.pop("pass")
        shapes = batch.column("shape")
        form = shape_sums(shapes) ^ _place_sums(batch.column("place"))
        step = steps[0].as_py() if batch.num_rows else -1
        return Rows(self._codes, step, pass_=pass_, form=form, shapes=shapes, **words, **plain)

    def _words(self, name: str, column: Any) -> Words:
        known = self._numbers(name, column.dictionary)
        found: Words = known[column.indices.to_numpy()]
        return found

    def _numbers(self, name: str, words: Any) -> Words:
        """Numbers of a file's dictionary, which only grows until the next file begins anew."""
        old, numbers = self._known.get(name, (words[:0], np.empty(0, np.int32)))
        if len(words) < len(old) or not words[: len(old)].equals(old):
            old, numbers = words[:0], np.empty(0, np.int32)
        if len(words) > len(old):
            new = [self._codes.number(word) for word in words[len(old) :].to_pylist()]
            numbers = np.concatenate([numbers, np.array(new, np.int32)])
        self._known[name] = (words, numbers)
        return numbers


def mix(sums: Sums) -> Sums:
    """Spread the bits of each number over all 64; a bijection."""
    sums = (sums ^ (sums >> np.uint64(31))) * np.uint64(0x7FB5D329728EA185)
    sums = (sums ^ (sums >> np.uint64(27))) * np.uint64(0x81DADEF4BC2DD44D)
    return sums ^ (sums >> np.uint64(33))


def join(first: Sums, *columns: npt.NDArray[Any]) -> Sums:
    """One number for several columns: equal cells give equal numbers."""
    # Mixed first: (4, 1) and (5, 0) must not add up to the same.
    first = mix(first)
    for column in columns:
        first = mix(first + column.astype(np.int64).view(np.uint64) + np.uint64(1))
    return first


def shape_sums(shapes: Any) -> Sums:
    """A number per shape: a sum over its sizes, each mixed with its place in the shape."""
    ends = shapes.offsets.to_numpy().astype(np.int64)
    sizes = shapes.values.to_numpy().astype(np.int64)
    lengths = np.diff(ends)
    if not len(lengths):
        return np.empty(0, np.uint64)
    sizes = sizes[ends[0] : ends[-1]]
    starts = ends[:-1] - ends[0]
    places = np.arange(len(sizes)) - np.repeat(starts, lengths)
    totals = np.zeros(len(sizes) + 1, np.uint64)
    np.cumsum(join(sizes.view(np.uint64), places), out=totals[1:])
    return mix(totals[starts + lengths] - totals[starts] + lengths.astype(np.uint64))


def _place_sums(places: Any) -> Any:
    if places.null_count == len(places):
        return np.uint64(0)
    # Few rows have places, and few of these differ from each other.
    seen: dict[str, int] = {"None": 0}
    numbers = [seen.setdefault(str(place), len(seen)) for place in places.to_pylist()]
    words = np.array([_word_sum(word) for word in seen], np.uint64)
    return words[np.array(numbers)]


def _word_sum(word: str) -> int:
    if word == "None":
        return 0
    raw = np.frombuffer(word.encode(), np.uint8).astype(np.uint64)
    return int(mix(join(raw, np.arange(len(raw))).sum(dtype=np.uint64).reshape(1))[0])
