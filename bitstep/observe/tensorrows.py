"""The rows of the tensors that an operation reads and writes.

1. A tensor has a row; a quantized one a row for each part; what has no bits one that says so.
2. The elements of a list are named after the parameter whose memory they are, else numbered.
3. A list that lies in memory as it did the last time at its place has its rows laid out already:
   only digests, versions and writers are put in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from bitstep.fingerprint.parts import UNKNOWN
from bitstep.observe.digests import PLAIN
from bitstep.observe.lists import FEWEST, Laid, laid_out
from bitstep.observe.schemas import Argument
from bitstep.observe.seen import Access, Accesses, Seen
from bitstep.records import Flag
from bitstep.trace.columns import Columns

_SKIPPED = int(Flag.SKIPPED)
_RESULTS = "out"
"""The slot of a list that an operation gives back: "out.0", "out.1"."""
_MOST_LISTS = 4096
"""More places of lists than that are none that come again."""


class _List(NamedTuple):
    """A list of tensors at one place of the program: how it lay, and its rows."""

    laid: Laid
    names: list[str | None]
    """Of its elements, where they have one."""
    cells: list[Any]
    """For `Columns.extend`."""


class TensorRows:
    """Adds rows to the columns. `hooks.names_of_addresses` names elements."""

    def __init__(self, columns: Columns, seen: Seen, hooks: Any) -> None:
        self._columns = columns
        self._seen = seen
        self._hooks = hooks
        self._lists: dict[tuple[int, int, str], _List | None] = {}
        self.skipped = 0
        """Tensors that have no bits."""

    def arguments(
        self,
        head: int,
        occurrence: int,
        arguments: Sequence[Argument],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        written: bool = False,
    ) -> None:
        """A row for each tensor among the arguments; None and numbers have none. `written`: the
        operation has written them."""
        row = self.write if written else self.read
        given = len(args)
        for at, name, many, slot in arguments:
            value = args[at] if 0 <= at < given else kwargs.get(name)
            if not many:
                if isinstance(value, Tensor):
                    row(head, occurrence, slot, value)
            elif value is not None:
                self._list(head, occurrence, slot, value, written)

    def results(self, head: int, occurrence: int, tensors: list[Tensor]) -> None:
        """A row for each tensor of a list that an operation gave back."""
        self._list(head, occurrence, _RESULTS, tensors, True)

    def read(self, head: int, occurrence: int, slot: str, tensor: Tensor, also: int = 0) -> None:
        """The row of an input, before the operation."""
        total, dtype, shape, flags, version, writer = self._seen.read(tensor)
        flags |= also
        if flags & _SKIPPED:
            if parts := self._seen.read_parts(tensor):
                self._parts(head, occurrence, slot, parts, also)
                return
            self.skipped += 1
        self._columns.add(head, occurrence, slot, total, dtype, shape, None, version, writer, flags)

    def write(self, head: int, occurrence: int, slot: str, tensor: Tensor, also: int = 0) -> None:
        """The row of what an operation wrote, after it."""
        columns = self._columns
        total, dtype, shape, flags, version, _ = self._seen.wrote(tensor, columns.next_seq)
        flags |= also
        if flags & _SKIPPED:
            if parts := self._seen.wrote_parts(tensor, columns.next_seq):
                parts = [(name, access._replace(writer=-1)) for name, access in parts]
                self._parts(head, occurrence, slot, parts, also)
                return
            self.skipped += 1
        columns.add(head, occurrence, slot, total, dtype, shape, None, version, -1, flags)

    def _parts(
        self, head: int, occurrence: int, slot: str, parts: list[tuple[str, Access]], also: int
    ) -> None:
        """A row for each part of a quantized tensor, under one slot."""
        for name, (total, dtype, shape, flags, version, writer) in parts:
            self.skipped += dtype == UNKNOWN
            flags |= also
            self._columns.add(
                head, occurrence, slot, total, dtype, shape, None, version, writer, flags, name
            )

    # -- lists ---------------------------------------------------------------------------------

    def _list(
        self, head: int, occurrence: int, slot: str, tensors: Sequence[Any], written: bool
    ) -> None:
        where = head, occurrence, slot
        known = self._lists.get(where)
        if known is not None and self._at_once(where, known, tensors, written):
            return
        row = self.write if written else self.read
        for at, tensor in enumerate(tensors):
            if isinstance(tensor, Tensor):
                row(head, occurrence, slot_of(slot, at, self._name(slot, tensor)), tensor)
        if len(tensors) >= FEWEST and (known is not None or where not in self._lists):
            if len(self._lists) >= _MOST_LISTS:
                self._lists.clear()
            laid = laid_out(tensors)
            self._lists[where] = None if laid is None else self._rows(where, laid, tensors)

    def _at_once(
        self,
        where: tuple[int, int, str],
        known: _List,
        tensors: Sequence[Any],
        written: bool,
    ) -> bool:
        columns = self._columns
        found = (
            self._seen.wrote_list(tensors, known.laid, columns.next_seq)
            if written
            else self._seen.read_list(tensors, known.laid)
        )
        if found is None:
            return False
        if self._names(where[2], tensors) != known.names:
            known = self._lists[where] = self._rows(where, known.laid, tensors)
        columns.extend(_filled(known.cells, found), found.sums)
        return True

    def _rows(self, where: tuple[int, int, str], laid: Laid, tensors: Sequence[Tensor]) -> _List:
        head, occurrence, slot = where
        names = self._names(slot, tensors)
        cells: list[Any] = []
        each = zip(names, laid.dtypes, laid.shapes, strict=True)
        for at, (name, dtype, shape) in enumerate(each):
            element = slot_of(slot, at, name)
            cells += (head, occurrence, element, dtype, shape, None, -1, -1, 0, "bits")
        return _List(laid, names, cells)

    def _names(self, slot: str, tensors: Sequence[Tensor]) -> list[str | None]:
        """What each is known as: the program's names, where the optimizer sees only lists."""
        known = self._hooks.names_of_addresses
        if not known or slot == _RESULTS:
            return [None] * len(tensors)
        return list(map(known.get, map(Tensor.data_ptr, tensors)))

    def _name(self, slot: str, tensor: Tensor) -> str | None:
        return self._names(slot, (tensor,))[0] if type(tensor) in PLAIN else None


def slot_of(slot: str, at: int, name: str | None) -> str:
    """The slot of an element of a list: by name where it is known, never by position then."""
    if slot == _RESULTS:
        return f"{slot}.{at}"
    return f"{slot}[{at if name is None else name}]"


def _filled(cells: list[Any], found: Accesses) -> list[Any]:
    """The cells of this time."""
    filled = cells.copy()
    filled[6::10] = found.versions
    filled[7::10] = found.writers
    if found.flags is not None:
        filled[8::10] = found.flags
    return filled
