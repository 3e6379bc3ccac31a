"""Rows of the step that runs, kept in columns: the way in for a recorder of thousands of rows.

1. `head` names the part of a site that the rows of one call share, once; rows carry its number.
2. `add` takes a row in a quarter of a microsecond: no object is made that outlives the step.
3. `digests` may be filled in later, when an accelerator has computed them.
4. `TraceWriter.end_step_columns` writes what `write` and `end_step` would for equal records.

>>> columns = Columns()
>>> relu = columns.head(0, "forward", "primary", 0, "Net.0", "aten::relu")
>>> columns.add(relu, 0, "in.0", 7, "float32", (2, 3)), columns.add(relu, 0, "out.0", 0, "float32", ())
(0, 1)
>>> columns.digests[1] = 9
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from bitstep.errors import TraceError
from bitstep.records import Place
from bitstep.trace.rows import FIT_ERRORS, Words, distinct, does_not_fit, place_column, shape_column
from bitstep.trace.schema import SCHEMA, WORD_COLUMNS

Head = tuple[int, str, str, int, str, str]
"""Rank, phase, pass, microbatch, module, op."""

_HEAD_FIELDS: Final = ("rank", "phase", "pass", "microbatch", "module", "op")
_TYPES: Final = {field.name: field.type for field in SCHEMA}
_ROW_FIELDS: Final = ("head", "occurrence", "slot", "dtype", "shape", "place", "version", "writer",
                      "flags", "part")  # fmt: skip


class Columns:
    """Rows of the running step, in order. Lives as long as its recorder: `seq` and the numbers of
    heads go on from step to step. Not for use by two threads."""

    def __init__(self) -> None:
        self.digests: list[int] = []
        """Of the running step, by row. An entry may be replaced until the step is written."""
        self.cells: list[Any] = []
        self.first = 0
        self._numbers: dict[Head, int] = {}
        self._heads: list[Head] = []
        self._words: Words | None = None
        self._before: dict[str, _Before] = {}
        self.passed: frozenset[str] = frozenset()
        """Columns of the batch that was encoded last which are those of the one before it."""

    def __len__(self) -> int:
        return len(self.digests)

    @property
    def next_seq(self) -> int:
        """The `seq` of the row that is added next."""
        return self.first + len(self.digests)

    def set_rank(self, rank: int) -> None:
        """All rows so far are of `rank`: a process learns late which one it is."""
        self._heads = [(rank, *head[1:]) for head in self._heads]
        self._before.clear()
        self._numbers = {head: number for number, head in enumerate(self._heads)}

    def head(self, rank: int, phase: str, pass_: str, microbatch: int, module: str, op: str) -> int:
        """The number of what rows of one call share; the same values have the same number."""
        head = (rank, phase, pass_, microbatch, module, op)
        number = self._numbers.get(head)
        if number is None:
            number = self._numbers[head] = len(self._heads)
            # A program may name a parameter as it likes; a file holds Unicode.
            self._heads.append((rank, phase, pass_, microbatch, unicode(module), unicode(op)))
        return number

    def add(
        self,
        head: int,
        occurrence: int,
        slot: str,
        digest: int,
        dtype: str,
        shape: tuple[int, ...],
        place: Place | None = None,
        version: int = -1,
        writer: int = -1,
        flags: int = 0,
        part: str = "bits",
    ) -> int:
        """Keep one row, unchecked; gives back its `seq`. The row is checked when it is written."""
        # One flat list of cells: a tuple per row would also cost the garbage collector its walk.
        self.cells.extend(
            (head, occurrence, slot, dtype, shape, place, version, writer, flags, part)
        )
        digests = self.digests
        digests.append(digest)
        return self.first + len(digests) - 1

    def extend(self, cells: Sequence[Any], digests: Sequence[int]) -> None:
        """Keep rows whose cells were laid out before: what `add` takes but for the digest, in its
        order, row by row."""
        if len(cells) != len(_ROW_FIELDS) * len(digests):
            raise TraceError(f"{len(cells)} cells for {len(digests)} digests")
        self.cells.extend(cells)
        self.digests.extend(digests)

    def clear(self) -> None:
        """Forget the rows of the step; `seq` goes on after them."""
        self.first += len(self.digests)
        self.digests.clear()
        self.cells.clear()

    def encode(self, step: int, words: Words) -> Any:
        """One record batch of the rows, still to be checked by `check_batch`, but for its columns
        `passed`. Raises TraceError for a value that its column cannot hold."""
        rows, width = len(self.digests), len(_ROW_FIELDS)
        if words is not self._words:
            self._words = words
            self._before.clear()
        try:
            made = {
                "seq": pa.array(np.arange(self.first, self.first + rows, dtype=np.int64)),
                "step": pa.array(np.full(rows, step, np.int64)),
                "digest": pa.array(self.digests, _TYPES["digest"]),
            }
            kept: dict[str, Any] = {}
            cells = {name: self.cells[at::width] for at, name in enumerate(_ROW_FIELDS)}
            # Of a place also what it is a place in.
            cells["place"] = [cells["place"], cells["shape"]]
            for name, column in cells.items():
                (kept if self._is_as_before(name, column) else made).update(
                    self._before[name].arrays
                )
            self.passed = frozenset(kept)
            arrays = [kept[name] if name in kept else made[name] for name in _TYPES]
            return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        except FIT_ERRORS as error:
            raise does_not_fit(error) from error

    def _is_as_before(self, name: str, cells: list[Any]) -> bool:
        """Whether a field has the cells of the step before, and so the arrays; else they are made.

        Most steps have the rows of the one before, and other digests.
        """
        before = self._before.get(name)
        words: Any = self._words
        if before is not None and before.cells == cells and before.known == words.known(name):
            return True
        if name == "head":
            arrays = self._shared(cells, words)
        elif name == "place":
            arrays = {name: place_column(*cells)}
        elif name == "shape":
            arrays = {name: shape_column(cells)}
        elif name in WORD_COLUMNS:
            arrays = {name: words.column(name, words.ids(name, cells))}
        else:
            arrays = {name: pa.array(cells, _TYPES[name])}
        self._before[name] = _Before(cells, arrays, words.known(name))
        return False

    def _shared(self, numbers: list[int], words: Words) -> dict[str, Any]:
        """The columns that heads stand for: each distinct head is looked at once."""
        used, position = distinct(numbers)
        fields = list(zip(*(self._heads[number] for number in used), strict=True)) or [()] * 6
        return {
            name: words.column(name, words.ids(name, field)[position])
            if name in WORD_COLUMNS
            else pa.array(np.array(field, np.int64)[position], _TYPES[name])
            for name, field in zip(_HEAD_FIELDS, fields, strict=True)
        }


class _Before(NamedTuple):
    """What the cells of a field were at the step before, and what was made of them."""

    cells: list[Any]
    arrays: dict[str, Any]
    known: int
    """How many words its columns had: more of them are another dictionary."""


def unicode(text: str) -> str:
    r"""The text as a file can hold it: a lone surrogate becomes its escape.

    >>> unicode("\ud800.weight") == "\\ud800.weight"
    True
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
