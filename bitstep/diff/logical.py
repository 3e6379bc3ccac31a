"""Two runs in different layouts -> where their logical states part.

Rows of ranks that cut tensors in other ways cannot be paired. What they can be compared by:

1. Each rank adds to the logical root of a stream what it counts (`fingerprint.logical`): summed
   over the ranks of a run, a root is the same in every layout.
2. At the first step at which a root differs, the rows of its tensors are summed, each place once,
   where both runs recorded at level `phase`: the tensors that differ are named.

    layouts = layouts_of(run_a, run_b)
    causes, steps = compare_logical(run_a, run_b) if layouts else ((), ())
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from bitstep.diff.difference import Bits, Cause, Kind, Where
from bitstep.diff.load import Life, Run
from bitstep.diff.rows import Rows
from bitstep.records import WHOLE_RUN

PREFIX: Final = "root.logical."
_ORDER: Final = ("start", "optimizer")
_STREAMS: Final = {"grads": ("grad",), "params": ("param",), "buffers": ("buffer", "attr")}
_SHOWN: Final = 3

Totals = dict[tuple[str, str], int]
"""Phase and stream -> the logical root."""
Tensors = dict[tuple[str, str], int]
"""Name and slot -> the sum of a logical tensor."""


class Parted(NamedTuple):
    """What comparing logical states has shown."""

    causes: tuple[Cause, ...]
    steps: tuple[int, ...]
    """The steps that both runs have logical roots of."""
    equal: int
    """Logical roots that are equal, before any that differs."""


def layouts_of(a: Run, b: Run) -> tuple[str, str] | None:
    """The layouts of two runs, if both say one and they differ."""
    one, two = _layout(a), _layout(b)
    return (one, two) if one and two and one != two else None


def compare_logical(a: Run, b: Run, layouts: tuple[str, str]) -> Parted:
    """Where the logical states of two runs in these layouts part."""
    roots = _roots(a), _roots(b)
    steps = tuple(sorted(roots[0].keys() & roots[1].keys()))
    equal = 0
    for step in steps:
        one, two = (run[step] for run in roots)
        for key in sorted(one.keys() & two.keys(), key=_place_in_step):
            if one[key] != two[key]:
                return Parted((_cause(a, b, step, key, (one[key], two[key]), layouts, equal),),
                              steps, equal)  # fmt: skip
            equal += 1
    return Parted((), steps, equal)


def _cause(
    a: Run, b: Run, step: int, key: tuple[str, str], bits: tuple[int, int],
    layouts: tuple[str, str], equal: int,
) -> Cause:  # fmt: skip
    phase, stream = key
    tensors = _tensors(a, step, key), _tensors(b, step, key)
    differ = [name for name in tensors[0] if tensors[1].get(name) not in (None, tensors[0][name])]
    names = ", ".join(name for name, _ in differ[:_SHOWN])
    more = f" and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
    known = f"{len(differ)} of {len(tensors[0])} tensors differ: {names}{more}." if differ else (
        "No rows of tensors at this step say which: record at level phase.")  # fmt: skip
    name, slot = differ[0] if differ else ("", PREFIX + stream)
    where = Where(step, WHOLE_RUN, phase, "primary", -1, name, "", 0, slot, 0, 0)
    shown_a, shown_b = (
        Bits((tensors[side][differ[0]] if differ else bits[side]), "uint64", (), -1)
        for side in (0, 1)
    )
    return Cause(
        Kind.LOGICAL,
        where,
        f"the {stream} are others, summed over all ranks of each run",
        (
            known,
            f"A ran {layouts[0]}; B ran {layouts[1]}.",
            "Another layout adds gradients in another order: other bits in later steps are usual.",
        ),
        "certain that the logical state differs; which operation it was cannot be told",
        shown_a,
        shown_b,
        (),
        equal,
        "by logical tensor, over all ranks",
    )


def _place_in_step(key: tuple[str, str]) -> tuple[int, int]:
    phase, stream = key
    streams = list(_STREAMS)
    return (
        _ORDER.index(phase) if phase in _ORDER else len(_ORDER),
        streams.index(stream) if stream in streams else len(streams),
    )


def _layout(run: Run) -> str:
    """What the first rank of a run said about its layout."""
    for life in run.lives:
        for process in life.index.processes[:1]:
            steps = life.steps(process)
            rows = life.rows(process, int(steps[0])) if len(steps) else None
            if rows is not None:
                for row in np.flatnonzero(rows.slot == rows.codes.number("layout")).tolist():
                    return rows.text("op", row)
    return ""


def _roots(run: Run) -> dict[int, Totals]:
    """Step -> the logical roots, of steps that every rank of a life recorded."""
    found: dict[int, Totals] = {}
    for life in run.lives:
        seen: dict[int, list[Totals]] = {}
        for process in life.index.processes:
            for step, rows in life.walk(process, life.steps(process).tolist()):
                if rows is not None:
                    seen.setdefault(step, []).append(_roots_in(rows))
        for step, parts in seen.items():
            if len(parts) == len(life.index.processes):
                found[step] = _added(parts)
    return found


def _roots_in(rows: Rows) -> Totals:
    words = [slot for slot in set(rows.slot.tolist()) if rows.codes.words[slot].startswith(PREFIX)]
    return {
        (rows.text("phase", row), rows.text("slot", row).removeprefix(PREFIX)): int(
            rows.digest[row]
        )
        for row in np.flatnonzero(np.isin(rows.slot, words)).tolist()
    }


def _added(parts: list[Totals]) -> Totals:
    total: Totals = {}
    for part in parts:
        for key, value in part.items():
            total[key] = (total.get(key, 0) + value) % 2**64
    return total


def _tensors(run: Run, step: int, key: tuple[str, str]) -> Tensors:
    """The sums of the logical tensors of a stream at the end of a step, each place counted once."""
    phase, stream = key
    places: dict[tuple[str, str, int], int] = {}
    for life in reversed(run.lives):
        for process in life.index.processes:
            places.update(_places_in(life, process, step, phase, stream))
        if places:
            break
    total: Tensors = {}
    for (name, slot, _), value in places.items():
        total[name, slot] = (total.get((name, slot), 0) + value) % 2**64
    return total


def _places_in(
    life: Life, process: int, step: int, phase: str, stream: str
) -> Mapping[tuple[str, str, int], int]:
    rows = life.rows(process, step)
    if rows is None:
        return {}
    wanted = np.array(list(_rows_of(rows, phase, stream)), np.int64)
    return {
        (rows.text("module", row), rows.text("slot", row), int(rows.form[row])):
            int(rows.digest[row]) for row in wanted.tolist()
    }  # fmt: skip


def _rows_of(rows: Rows, phase: str, stream: str) -> Iterator[int]:
    """Rows of the tensors that a root is over: of state, those that the step leaves behind."""
    last = 1 if phase == "optimizer" and stream != "grads" else 0
    same = (rows.phase == rows.codes.number(phase)) & (rows.occurrence == last)
    same &= rows.op == rows.codes.number("")
    for row in np.flatnonzero(same).tolist():
        slot = rows.text("slot", row)
        slots = _STREAMS.get(stream)
        if slot in slots if slots else slot.startswith("state."):
            yield row
