"""What the members of a collective got, within one step.

1. Rows of collectives are grouped by (members, operation, its number within the step).
2. Of an all-reduce, a broadcast and an all-gather every member must get the same bits.
3. An all-gather into a list must give, at each place, what that member put in.

    found, compared = uneven({0: rows_0, 1: rows_1}, slots)
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from bitstep.diff.rows import Rows
from bitstep.diff.slots import Slots
from bitstep.diff.spread import members_of
from bitstep.records import Flag

ALIKE: Final = ("allreduce", "all_reduce", "broadcast", "allgather", "all_gather")
GATHERS: Final = ("allgather", "all_gather")
_NUMBERS: Final = re.compile(r"\d+", re.ASCII)

Call = tuple[str, ...]
"""Members, op, phase, pass, microbatch, occurrence."""


class Uneven(NamedTuple):
    """A result that members did not get alike, or that is not what a member put in."""

    call: Call
    slot: str
    order: int
    odd: tuple[int, ...]
    told: bool
    among: tuple[int, ...]
    source: int | None = None
    """Of a gather against its shard: whose shard."""
    arrived: bool = True
    """False: a member still has what it put in; a program that was broken off looks like this."""


class _Member(NamedTuple):
    """The rows of one call on one rank: slot -> (content, row)."""

    rank: int
    inputs: dict[str, tuple[tuple[int, ...], int]]
    outputs: dict[str, tuple[tuple[int, ...], int]]


def uneven(rows: Mapping[int, Rows], slots: Slots) -> tuple[list[Uneven], int, int]:
    """What is uneven in one step; how many results were compared, and how many shards."""
    calls: dict[Call, list[_Member]] = defaultdict(list)
    for process, of in sorted(rows.items()):
        for call, member in _calls(process, of, slots):
            calls[call].append(member)
    found, results, shards = [], 0, 0
    for call, members in calls.items():
        if len(members) < 2:
            continue
        alike = list(_alike(call, members))
        results += len({slot for member in members for slot in member.outputs})
        gathered, compared = _shards(call, members)
        shards += compared
        # A shard says which rank is wrong; that members differ does not always.
        found += gathered or alike
    return sorted(found, key=lambda item: item.order), results, shards


def _calls(process: int, rows: Rows, slots: Slots) -> Iterator[tuple[Call, _Member]]:
    chosen = np.flatnonzero(slots.collective(rows))
    calls: dict[Call, _Member] = {}
    for row in chosen.tolist():
        op, module = rows.text("op", row), rows.text("module", row)
        if len(members_of(module)) < 2 or not any(word in op for word in ALIKE):
            continue
        call = (module, op, rows.text("phase", row), rows.text("pass_", row),
                str(rows.microbatch[row]), str(rows.occurrence[row]))  # fmt: skip
        rank = int(rows.rank[row])
        member = calls.setdefault(call, _Member(process if rank < 0 else rank, {}, {}))
        slot = rows.text("slot", row)
        if rows.flags[row] & Flag.SKIPPED:
            continue
        content = int(rows.digest[row]), int(rows.dtype[row]), int(rows.form[row])
        if slot.startswith("in."):
            member.inputs[slot] = content, row
        elif slot.startswith(("out.", "mutated.")):
            member.outputs[slot] = content, row
    yield from calls.items()


def _alike(call: Call, members: list[_Member]) -> Iterator[Uneven]:
    """Results that differ between members."""
    for slot, (_, row) in members[0].outputs.items():
        having = [member for member in members if slot in member.outputs]
        counts = Counter(member.outputs[slot][0] for member in having).most_common(2)
        if len(counts) < 2:
            continue
        told = 2 * counts[0][1] > len(having)
        odd = tuple(member.rank for member in having
                    if not told or member.outputs[slot][0] != counts[0][0])  # fmt: skip
        arrived = not any(_untouched(m, slot) for m in having if m.rank in odd)
        among = tuple(member.rank for member in having)
        yield Uneven(call, slot, row, odd, told, among, arrived=arrived)


def _untouched(member: _Member, slot: str) -> bool:
    given = member.inputs.get(slot.replace("mutated.", "in.", 1))
    return given is not None and given[0] == member.outputs[slot][0]


def _shards(call: Call, members: list[_Member]) -> tuple[list[Uneven], int]:
    """Of an all-gather into a list: places that are not what their member put in."""
    ranks = members_of(call[0])
    if not any(word in call[1] for word in GATHERS):
        return [], 0
    inputs = {m.rank: list(m.inputs.values()) for m in members}
    found, compared = [], 0
    for member in members:
        outputs = sorted(member.outputs.items(), key=lambda item: _places(item[0]))
        if len(outputs) != len(ranks):
            continue
        for (slot, (content, row)), source in zip(outputs, ranks, strict=True):
            shard = inputs.get(source, [])
            if len(shard) != 1 or shard[0][0][1:] != content[1:]:
                continue
            compared += 1
            if shard[0][0] != content:
                among = tuple(m.rank for m in members)
                found.append(Uneven(call, slot, row, (member.rank,), True, among, source))
    return found, compared


def _places(slot: str) -> list[int]:
    return [int(word) for word in _NUMBERS.findall(slot)]
