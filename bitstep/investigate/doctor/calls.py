"""What a recording holds of each operation: how often, where, and on which tensors.

1. The rows of one call are brought together: its inputs, its results, the digest of its arguments.
2. Calls of one operation on equal kinds of tensors are one `Call`, and counted.
3. What a trace says of things that are no operation is counted beside: threads, gaps, reads of
   memory that nobody wrote.

>>> calls = read_calls(Path("look/recording"))  # doctest: +SKIP
>>> calls.ran["aten.mm"].count  # doctest: +SKIP
12
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from bitstep.records import Flag, Record
from bitstep.trace.run import read_run

_PLACES: Final = 3
_NO_CALL: Final = ("gap", "layout")
_SHAPES: Final = 64
"""Kinds of tensors of one operation that are looked at; the others are counted only."""


class Tensor(NamedTuple):
    """One tensor that a call was given or gave back."""

    slot: str
    dtype: str
    shape: tuple[int, ...]


class Call(NamedTuple):
    """A kind of call."""

    tensors: tuple[Tensor, ...]
    args: int | None
    """Digest of the arguments that are no tensors; None: it was given none."""

    def given(self) -> tuple[Tensor, ...]:
        """What it was given."""
        return tuple(tensor for tensor in self.tensors if tensor.slot.startswith("in."))


@dataclass
class Ran:
    """All calls of one operation."""

    op: str
    count: int = 0
    ranks: set[int] = field(default_factory=set)
    places: Counter[str] = field(default_factory=Counter)
    """Modules, with how many calls; "" outside of all of them."""
    kinds: Counter[Call] = field(default_factory=Counter)

    def where(self) -> str:
        """The modules that call it most."""
        names = [name or "outside of modules" for name, _ in self.places.most_common(_PLACES)]
        more = len(self.places) - len(names)
        return ", ".join(names) + (f" and {more} more" if more > 0 else "")


@dataclass
class Calls:
    """What a recording holds."""

    ran: dict[str, Ran] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """"count.threads", "count.skipped", "count.compiled", over all steps and ranks."""
    gaps: dict[str, None] = field(default_factory=dict)
    """Why something is not recorded, in order."""
    uninitialised: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(op, module) of reads of memory that nobody wrote."""
    dtypes: set[str] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)


def read_calls(run: Path) -> Calls:
    """Bring the rows of a recording together. Raises RunError and TraceError as `read_run` does."""
    calls = Calls()
    for attempt in read_run(run):
        for _, step in groupby(attempt.trace.records(), lambda record: record.site[:2]):
            # Results of a collective come when it is waited for, after rows of other calls.
            sites: dict[_Site, list[Record]] = {}
            for record in step:
                sites.setdefault(_call_of(record), []).append(record)
            for site, rows in sites.items():
                _take(calls, site, rows)
    return calls


class _Site(NamedTuple):
    step: int
    rank: int
    phase: str
    pass_: str
    microbatch: int
    module: str
    op: str
    occurrence: int


def _call_of(record: Record) -> _Site:
    s = record.site
    return _Site(s.step, s.rank, s.phase, s.pass_, s.microbatch, s.module, s.op, s.occurrence)


def _take(calls: Calls, site: _Site, rows: list[Record]) -> None:
    calls.ranks.add(site.rank)
    calls.steps.add(site.step)
    for row in rows:
        slot = row.site.slot
        if slot.startswith("count."):
            calls.counts[slot] += row.digest
        elif slot == "gap":
            calls.gaps[site.op] = None
    if "." not in site.op or all(row.site.slot in _NO_CALL for row in rows):
        return  # Settings of an optimizer are under its name, as gaps are under their reason.
    calls.dtypes.update(row.dtype for row in rows)
    ran = calls.ran.setdefault(site.op, Ran(site.op))
    ran.count += 1
    ran.ranks.add(site.rank)
    ran.places[site.module] += 1
    args = next((row.digest for row in rows if row.site.slot == "args"), None)
    call = Call(tuple(_tensors(rows)), args)
    if call in ran.kinds or len(ran.kinds) < _SHAPES:
        ran.kinds[call] += 1
    if any(row.flags & Flag.UNINITIALISED for row in rows):
        calls.uninitialised[site.op, site.module] += 1


def _tensors(rows: list[Record]) -> Iterator[Tensor]:
    for row in rows:
        if row.site.slot not in ("args", "rng", "raised"):
            yield Tensor(row.site.slot, row.dtype, row.shape)
