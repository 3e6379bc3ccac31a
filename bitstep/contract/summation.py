"""The order in which a process group sums: its signature, and what two signatures predict.

1. `summation_measure.measure` has the group add crafted values; the results, decoded, are `Sums`.
2. A `Signature` holds those of one group: per operation and size one line and one digest.
3. `predict` says from two of them whether two runs will add in the same order, before they train.

    all_reduce.float32.1024   ring down, 4 chunks of 64: ((2+3)+1)+0, ... #5f0c9a1b22d4

No torch here: signatures are compared where they are read.

>>> words_of((Run(0, 256, "0+1", ""),), "5f0c9a1b22d4", ranks=2)
'one order: 0+1 #5f0c9a1b22d4'
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

from bitstep.contract.summation_runs import Run
from bitstep.errors import ContractError

Verdict = Literal["same", "different", "cannot tell"]
ALONE: Final = "one rank adds nothing"
_KEY: Final = re.compile(
    r"(layout\.physical\.)?groups\.(?P<group>[^.]+)\.(measured|sums\.(?P<sums>\w+\.\w+\.\d+))"
)
_DIGEST: Final = re.compile(r" #([0-9a-f]{12})\Z")


@dataclass(frozen=True, slots=True)
class Sums:
    """How one operation added one buffer."""

    op: str
    """all_reduce or reduce_scatter."""
    dtype: str
    elements: int
    """Of the buffer, on each rank, before the operation."""
    runs: tuple[Run, ...]
    """From element 0 to the end. Members are named by their global rank."""
    digest: str
    """12 hex digits: equal orders in equal places, and no others."""
    words: str
    """For a person: one line."""

    @property
    def key(self) -> str:
        """all_reduce.float32.1024: the last part is the size in bytes."""
        return f"{self.op}.{self.dtype}.{4 * self.elements}"


@dataclass(frozen=True, slots=True)
class Signature:
    """How one process group adds. The same on every member, unless they `disagree`."""

    ranks: tuple[int, ...]
    """Global ranks, in the order of their rank in the group."""
    backend: str
    device: str
    sums: tuple[Sums, ...] = ()
    disagree: bool = False
    """Whether the members got different results of one sum."""
    problem: str = ""
    """Why nothing was measured."""

    def plain(self) -> dict[str, Any]:
        """For a manifest: nested tables of text."""
        table: dict[str, Any] = {
            "ranks": ranks_text(self.ranks),
            "backend": self.backend,
            "device": self.device,
            "measured": _measured(self),
        }
        for sums in self.sums:
            of_type = table.setdefault("sums", {}).setdefault(sums.op, {})
            of_type.setdefault(sums.dtype, {})[str(4 * sums.elements)] = sums.words
        return table


@dataclass(frozen=True, slots=True)
class Prediction:
    """What two signatures say about two runs."""

    verdict: Verdict
    """"same": sums of the sizes that were measured have the same bits."""
    where: tuple[str, ...]
    """Keys of the sums whose order differs: "all_reduce.float32.1024"."""
    why: str


def predict(a: Signature, b: Signature) -> Prediction:
    """Whether two runs with these groups add in the same order, before they train."""
    return _predict(_said(a), _said(b))


def predict_manifests(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Prediction]:
    """The same for each group that both manifests have; by its name, from dotted keys."""
    ours, theirs = _read(a), _read(b)
    return {name: _predict(ours[name], theirs[name]) for name in ours if name in theirs}


def other_order(signature: Signature, a: Sequence[int], b: Sequence[int]) -> int:
    """How many elements of one flat buffer are added in another order when it is cut otherwise.

    `a` and `b` are the lengths of the buckets, in elements; each is all-reduced by itself. Raises
    ContractError for a length that was not measured, or whose order could not be read.
    """
    if sum(a) != sum(b):
        raise ContractError(f"buckets of {sum(a)} and {sum(b)} elements: give two cuts of one")
    ours, theirs = list(_pieces(signature, a)), list(_pieces(signature, b))
    different = at = 0
    while ours:
        (end, order), (other_end, other) = ours[0], theirs[0]
        upto = min(end, other_end)
        different += (upto - at) * (order != other)
        at = upto
        ours = ours[end == upto :]
        theirs = theirs[other_end == upto :]
    return different


def words_of(runs: Sequence[Run], digest: str, ranks: int) -> str:
    """One line about the order of a buffer; the digest is its last word."""
    return f"{_order(runs, ranks)} #{digest}"


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in their order, as short as they can be.

    >>> ranks_text([0, 1, 2, 3]), ranks_text([0, 2, 4]), ranks_text([2, 0, 3])
    ('0-3', '0-4by2', '2_0_3')
    """
    steps = {after - before for before, after in pairwise(ranks)}
    if steps == {1}:
        return f"{ranks[0]}-{ranks[-1]}"
    if len(steps) == 1 and len(ranks) > 2 and min(steps) > 1:
        return f"{ranks[0]}-{ranks[-1]}by{min(steps)}"
    return "_".join(map(str, ranks))


def _measured(signature: Signature) -> str:
    if len(signature.ranks) == 1:
        return ALONE
    if signature.problem:
        return f"no: {signature.problem}"
    return "the members got different sums" if signature.disagree else "yes"


def _order(runs: Sequence[Run], ranks: int) -> str:
    orders = [run.order for run in runs]
    shown = ", ".join(orders[: 4 if ranks <= 4 else 1]) + ", ..." * (len(orders) > 4 or ranks > 4)
    if "" in orders:
        return "not read"
    if len(runs) == 1:
        return f"{runs[0].name or 'one order'}: {orders[0]}"
    ways = {run.name.partition(" from ")[0] for run in runs}
    lengths = {run.end - run.start for run in runs[:-1]}
    cut = f"{len(runs)} chunks of {min(lengths)}" if len(lengths) == 1 else f"{len(runs)} parts"
    name = ways.pop() if len(ways) == 1 else ""
    return f"{name or 'several orders'}, {cut}: {shown}"


class _Said(NamedTuple):
    """What a signature says, wherever it was read."""

    measured: str
    digests: dict[str, str]
    """Key of the sums to their digest."""


def _said(signature: Signature) -> _Said:
    return _Said(_measured(signature), {sums.key: sums.digest for sums in signature.sums})


def _read(keys: Mapping[str, Any]) -> dict[str, _Said]:
    """What the dotted keys of a manifest say of each group. Nothing in them is trusted."""
    found: dict[str, _Said] = {}
    for key, value in keys.items():
        match = _KEY.fullmatch(key)
        if match is None or not isinstance(value, str):
            continue
        group, sums = match["group"], match["sums"]
        said = found.setdefault(group, _Said("no", {}))
        if sums is None:
            found[group] = said._replace(measured=value)
        elif digest := _DIGEST.search(value):
            said.digests[sums] = digest[1]
    return found


def _predict(a: _Said, b: _Said) -> Prediction:
    if a.measured == b.measured == ALONE:
        return Prediction("same", (), ALONE)
    for said in (a, b):
        if said.measured != "yes":
            return Prediction("cannot tell", (), f"was a group measured: {said.measured}")
    common = [key for key in a.digests if key in b.digests]
    where = tuple(key for key in common if a.digests[key] != b.digests[key])
    if where:
        return Prediction("different", where, "the group adds in another order: sums differ")
    if not common:
        return Prediction("cannot tell", (), "no size was measured in both")
    return Prediction("same", (), f"the same order at {', '.join(common)}")


def _pieces(signature: Signature, buckets: Sequence[int]) -> Iterator[tuple[int, str]]:
    """(end in the flat buffer, order) of each run of each bucket."""
    known = {sums.elements: sums for sums in signature.sums if sums.op == "all_reduce"}
    start = 0
    for length in buckets:
        sums = known.get(length)
        if sums is None or any(not run.order for run in sums.runs):
            said = "was not measured" if sums is None else "has an order that could not be read"
            raise ContractError(f"a bucket of {length} elements {said}: measure that size")
        yield from ((start + run.end, run.order) for run in sums.runs)
        start += length
