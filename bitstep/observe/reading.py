"""A stream of the training state, read at every step: prepared once, one call of the kernel then.

1. `Reader.read` gives a `Reading`: what the rows of a stream share at every step, and their sums.
2. The first time tensors are digested one by one, and a `_Plan` is made: where each piece begins in
   its tensor, how long it is, where its runs lie in the logical tensor.
3. The plan is used as long as the key of the stream and the layouts of its tensors are those it was
   made for. Addresses are asked anew each time; no tensor is held.
4. What the plan cannot be made for (quantized, sparse, strided, on an accelerator) is digested one
   by one each time.

>>> Reader().read([]).root()
5572323138554234527
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bitstep.fingerprint import cpu
from bitstep.fingerprint.places import first_byte, runs
from bitstep.observe import snapshot
from bitstep.observe.digests import PLAIN, is_bare, is_dense
from bitstep.observe.journal import resolve
from bitstep.observe.layouts import Layouts
from bitstep.observe.snapshot import Held, Item, Row
from bitstep.records import Box, Place

_MOST_PLANS: Final = 256
"""More streams than that are none that come again."""
_MOST_CELLS: Final = 64
_K, _SEED = cpu.TABLES[1]
Sums = npt.NDArray[np.uint64]


class Pairs:
    """What is known before of the table that a root is made of: the heads, and their order."""

    def __init__(self, heads: Sums) -> None:
        self._order = np.argsort(heads, kind="stable")
        self._table = np.stack((heads, heads), axis=1)[self._order]
        self._heads = heads
        self._are_different = len(np.unique(heads)) == len(heads)

    def root(self, sums: Sums) -> int:
        """64 bits over names, slots, places and digests."""
        # Where two rows have one name the digests say which is first.
        order = self._order if self._are_different else np.lexsort((sums, self._heads))
        self._table[:, 1] = sums[order]
        return snapshot.root_of_table(self._table)


class Table:
    """What the rows of a stream have in common at every step: all but their digests."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.heads = np.array([snapshot.head_of(row) for row in rows], np.uint64)
        self.pairs = Pairs(self.heads)
        self._rows = rows
        self._main = np.array([at for at, row in enumerate(rows) if row.main], np.int64)
        factors = [snapshot.factor_of(row) for row in rows if row.main]
        self._factors = np.array(factors, np.uint64)
        self._cells: dict[Hashable, list[Any]] = {}

    @property
    def is_odd(self) -> bool:
        """Whether something of it has no bits."""
        return any(row.digest.flags for row in self._rows)

    @property
    def is_counted(self) -> bool:
        """Whether this process counts a row of it for a logical root."""
        return len(self._main) > 0

    def logical(self, sums: Sums) -> int:
        """What this process adds to the logical root."""
        return int((self._factors * sums[self._main]).sum(dtype=np.uint64))

    def cells(self, where: Hashable, occurrence: int, head: Callable[[str], int]) -> list[Any]:
        """The cells of the rows, for `Columns.extend`; `where` says what `head` depends on."""
        found = self._cells.get((where, occurrence))
        if found is None:
            found = []
            for name, slot, (_, dtype, shape, flags), place, _, part in self._rows:
                found += (head(name), occurrence, slot, dtype, shape, place, -1, -1, flags, part)
            if len(self._cells) < _MOST_CELLS:
                self._cells[where, occurrence] = found
        return found


class Reading(NamedTuple):
    """A stream as it is now."""

    table: Table
    sums: Sums

    def root(self) -> int:
        """64 bits over names, slots, places and digests."""
        return self.table.pairs.root(self.sums)


class Whole:
    """Several streams as one."""

    def __init__(self) -> None:
        self._tables: list[Table] = []
        self._pairs = Pairs(np.empty(0, np.uint64))

    def root(self, readings: Sequence[Reading]) -> int:
        """One root of all of them."""
        tables = [reading.table for reading in readings]
        if tables != self._tables:
            self._tables = tables
            self._pairs = Pairs(np.concatenate([table.heads for table in tables]))
        return self._pairs.root(np.concatenate([reading.sums for reading in readings]))


class Reader:
    """Reads streams, and remembers how."""

    def __init__(self) -> None:
        self._plans: dict[Hashable, _Plan | None] = {}

    def read(self, items: Iterable[Item]) -> Reading:
        """The digests of a stream, now."""
        if not isinstance(items, Held):
            return _one_by_one(items)
        # A mode of the program would be asked about every tensor.
        with torch._C.DisableTorchFunction():
            tensors, key = _local(items)
            plan = self._plans.get(key)
            sums = None if plan is None else plan.sums(tensors)
        if plan is not None and sums is not None:
            return Reading(plan.table, sums)
        reading = _one_by_one(items)
        if plan is not None or key not in self._plans:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[key] = _plan(items, tensors, reading.table)
        return reading


def _local(held: Held) -> tuple[list[Tensor], Hashable]:
    """The tensors in this process, and the key with what says where they lie in DTensors."""
    if all(type(tensor) in PLAIN for tensor in held.tensors):
        return list(held.tensors), held.key
    tensors = [getattr(tensor, "_local_tensor", tensor) for tensor in held.tensors]
    return tensors, (held.key, tuple(getattr(tensor, "_spec", None) for tensor in held.tensors))


def _one_by_one(items: Iterable[Item]) -> Reading:
    rows = snapshot.read(items)
    sums = [row.digest.sum for row in rows]
    resolve(sums)
    return Reading(Table(rows), np.array(sums, np.uint64))


class _Piece(NamedTuple):
    """Bytes of a tensor, and where they lie in the logical one."""

    tensor: int
    offset: int
    run: int
    first: int
    loops: Sequence[tuple[int, int]] = ()


class _Plan:
    """How the pieces of some tensors are read in one call."""

    def __init__(self, tensors: Sequence[Tensor], pieces: Sequence[_Piece], table: Table) -> None:
        self.table = table
        self._layouts = Layouts(tensors)
        self._of = np.array([piece.tensor for piece in pieces], np.int64)
        self._offsets = np.array([piece.offset for piece in pieces], np.int64)
        loops = [loop for piece in pieces for loop in piece.loops]
        self._loops = np.array(loops, np.int64).reshape(-1, 2)
        counts = np.array([len(piece.loops) for piece in pieces], np.int64)
        runs = np.array([(piece.run, piece.first) for piece in pieces], np.int64).reshape(-1, 2)
        ends = np.cumsum(counts)
        self._jobs = np.column_stack((runs, ends - counts, ends))
        self._has_bytes = np.array([tensor.nbytes > 0 for tensor in tensors], np.bool_)

    def sums(self, tensors: Sequence[Tensor]) -> Sums | None:
        """The sum of each piece; None if these are not the tensors that the plan was made for."""
        if not self._layouts.are_those_of(tensors):
            return None
        addresses = np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))
        if not addresses.all() and not addresses[self._has_bytes].all():  # Their storage was freed.
            return None
        sums = np.empty(len(self._jobs), np.uint64)
        begins = addresses[self._of] + self._offsets
        cpu.box_sums(begins, self._jobs, self._loops, sums, _K, _SEED)
        return sums


def _plan(held: Held, tensors: Sequence[Tensor], table: Table) -> _Plan | None:
    """The plan for a stream; None where a tensor of it has to be looked at by itself."""
    cut = snapshot.listed(held.cut())
    if table.is_odd or len(cut) != len(table.heads):  # A quantized tensor has several rows.
        return None
    pieces = []
    with torch._C.DisableTorchFunction():
        for at, item in cut:
            piece = _piece(at, tensors[at], item)
            if piece is None:
                return None
            pieces.append(piece)
        return _Plan(tensors, pieces, table)


def _piece(at: int, tensor: Tensor, item: Item) -> _Piece | None:
    view, place = (item.tensor, item.place) if item.place else snapshot.local(item.tensor)
    if not (is_bare(tensor) and is_bare(view)):
        return None
    if tensor.untyped_storage().data_ptr() != view.untyped_storage().data_ptr():
        return None
    offset = view.data_ptr() - tensor.data_ptr()
    if place is None:
        return _Piece(at, offset, view.nbytes, 0) if is_dense(view) else None
    if not view.is_contiguous() or view.dim() == 0:
        return None
    return _Piece(at, offset, *_lies(place, view))


def _lies(place: Place, view: Tensor) -> tuple[int, int, Sequence[tuple[int, int]]]:
    if not isinstance(place, Box):
        return view.nbytes, place.start, ()
    run, loops = runs(place, view.itemsize)
    return run, first_byte(place.shape, place.offsets, view.itemsize), loops
