"""Where the program is right now: what every row of the recording is labelled with.

1. Forward hooks push and pop modules; optimizer, clip and loader hooks push phases.
2. In backward the module is that of the forward that made the node (`autograd`).
3. Recomputation in backward has modules of its own, and its rows carry the pass `recompute`.
4. `call` gives the interned head of an operation's rows and counts its occurrences in the scope.

One thread is recorded, the one that trains. What other threads do is counted by the hooks.

>>> scope = Scope(Columns())
>>> with scope.in_phase("optimizer"):
...     head, occurrence = scope.call("aten.add_.Tensor")
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bitstep.observe import autograd
from bitstep.trace.columns import Columns

PRIMARY, RECOMPUTE = "primary", "recompute"
Key = tuple[str, str, int, str]
"""Phase, pass, microbatch, module."""


class _Entry:
    """One operation in one scope: the number of its head, and how often it ran."""

    __slots__ = ("count", "head")

    def __init__(self, head: int) -> None:
        self.head = head
        self.count = 0


class _Table(dict[str, _Entry]):
    """The operations of one scope."""

    def __init__(self, key: Key) -> None:
        self.key = key


class Scope:
    """Phase, pass, microbatch and module of whatever comes next."""

    def __init__(self, columns: Columns) -> None:
        self.rank = 0
        self.microbatch = -1
        self.is_checkpointed = False
        self.attribution = autograd.Attribution()
        self._columns = columns
        self.thread = threading.get_ident()
        self._base = "start"
        self._phases: list[str] = []
        self._pass: str | None = None
        self._modules: list[str] = []
        self._recomputed: list[str] = []
        self.node: int | None = None
        """The number of the node whose operation came last, if nothing has moved since: a node has
        several operations."""
        self._tables: dict[Key, _Table] = {}
        self.used: list[_Entry] = []
        self.table = self.node_table = self._table_of(self._key())

    def is_ours(self) -> bool:
        """Whether the calling thread is the one that is recorded."""
        return threading.get_ident() == self.thread

    def adopt_thread(self) -> None:
        """Record the calling thread from now on."""
        self.thread = threading.get_ident()

    # -- what the hooks say ------------------------------------------------------------------

    def set_base(self, phase: str) -> None:
        """The phase of what happens outside of modules, backward and optimizers."""
        self._base = phase
        self._moved()

    @property
    def base(self) -> str:
        return self._base

    @contextmanager
    def in_phase(self, phase: str, pass_: str | None = None) -> Iterator[None]:
        """Everything inside belongs to `phase`, also in backward, and to `pass_` if given."""
        before = self._pass
        self._phases.append(phase)
        self._pass = pass_ or before
        self._moved()
        try:
            yield
        finally:
            self._phases.pop()
            self._pass = before
            self._moved()

    @contextmanager
    def checkpointed(self) -> Iterator[None]:
        """A forward without gradients that will be run again with them: it is training."""
        before, self.is_checkpointed = self.is_checkpointed, True
        try:
            yield
        finally:
            self.is_checkpointed = before

    @contextmanager
    def recomputing(self, module: str) -> Iterator[None]:
        """What is called inside, in backward, is the forward of `module` once more."""
        if not autograd.in_backward():
            yield
            return
        outside, self._recomputed = self._recomputed, [module]
        self._moved()
        try:
            yield
        finally:
            self._recomputed = outside
            self._moved()

    def enter(self, module: str) -> None:
        """A module's forward begins."""
        (self._recomputed if autograd.in_backward() else self._modules).append(module)
        self._moved()
        self.attribution.mark(module, self.microbatch)

    def leave(self) -> None:
        """It ended, also by an exception."""
        stack = self._recomputed if autograd.in_backward() else self._modules
        if stack:
            stack.pop()
        self._moved()
        self.attribution.mark(stack[-1] if stack else "", self.microbatch)

    @contextmanager
    def original(self) -> Iterator[None]:
        """A backward inside of backward, of what was just recomputed, is no recomputation."""
        outside, self._recomputed = self._recomputed, []
        self._moved()
        try:
            yield
        finally:
            self._recomputed = outside
            self._moved()

    @property
    def depth(self) -> int:
        """How many modules of the original forward are on the way."""
        return len(self._modules)

    @property
    def module(self) -> str:
        return self._modules[-1] if self._modules else ""

    def set_microbatch(self, number: int) -> None:
        """What comes next belongs to that microbatch."""
        self.microbatch = number
        self._moved()

    def backward_ended(self) -> None:
        """A recomputation that stopped early may have left its modules behind."""
        self._recomputed.clear()
        self._moved()

    def new_step(self) -> None:
        """Occurrences count from 0 again, and no node of the last step is looked up."""
        for entry in self.used:
            entry.count = 0
        self.used.clear()
        self.attribution.clear()
        self.set_microbatch(-1)

    # -- what the rows ask -------------------------------------------------------------------

    def here(self) -> str:
        """The module that an operation would belong to now."""
        if autograd.in_backward():
            return self._backward_key(autograd.node_number())[3]
        return self.module

    def call(self, op: str) -> tuple[int, int]:
        """The head of the rows of one call of `op`, here and now, and its occurrence."""
        if autograd.task() == -1:
            return self._count(self.table, op)
        number = autograd.node_number()
        if number != self.node:
            self.node, self.node_table = number, self._table_of(self._backward_key(number))
        return self._count(self.node_table, op)

    def collective(self, kind: str, members: str, op: str, microbatch: int = -1) -> tuple[int, int]:
        """Head and occurrence of a collective: it belongs to its members and not to a module."""
        phase = self._base if self._base == "start" else kind
        number = self.microbatch if microbatch < 0 else microbatch
        return self._count(self._table_of((phase, PRIMARY, number, members)), op)

    def module_call(self, module: str) -> tuple[int, int]:
        """Head and occurrence of the rows of one call of a module."""
        if autograd.in_backward():
            microbatch = self._backward_key(autograd.node_number())[2]
            key: Key = ("backward", RECOMPUTE, microbatch, module)
        else:
            key = (self.phase, self._pass or PRIMARY, self.microbatch, module)
        return self._count(self._table_of(key), "")

    def head(self, phase: str, module: str, op: str = "", microbatch: int = -1) -> int:
        """The head of rows that say themselves where they belong and which occurrence they are."""
        return self._columns.head(self.rank, phase, PRIMARY, microbatch, module, op)

    def _count(self, table: _Table, op: str) -> tuple[int, int]:
        entry = table.get(op)
        if entry is None:
            head = self._columns.head(self.rank, *table.key, op)
            entry = table[op] = _Entry(head)
        occurrence = entry.count
        if occurrence == 0:
            self.used.append(entry)
        entry.count = occurrence + 1
        return entry.head, occurrence

    def _table_of(self, key: Key) -> _Table:
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = _Table(key)
        return table

    @property
    def phase(self) -> str:
        return self._phases[-1] if self._phases else self._base

    def _key(self) -> Key:
        return self.phase, self._pass or PRIMARY, self.microbatch, self.module

    def _moved(self) -> None:
        self.table = self._table_of(self._key())
        self.node = None

    def _backward_key(self, number: int) -> Key:
        phase = self._phases[-1] if self._phases else "backward"
        owner = self.attribution.owner(number)
        module, microbatch = owner or ("", self.microbatch)
        if self._recomputed:
            return phase, RECOMPUTE, microbatch, self._recomputed[-1]
        return phase, self._pass or PRIMARY, microbatch, module
