"""Recomputation against the forward that it repeats, within one step of one process.

1. Rows of pass `recompute` are labelled as the forward's are, and paired with it as two runs would
   be (`bitstep.diff.align`). What only one has is no fault: recomputation stops early, and an
   operation whose result was saved is not repeated.
2. The first pair that differs, in the order of the recomputation, is reported.
3. Where an input differs and the forward had that input in another call of the same operation, the
   calls of the module were repeated in another order: this scope cannot be paired, and is counted.

    differing(rows, slots).title
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from bitstep.diff.align import Pairs, pair
from bitstep.diff.rows import Ints, Rows, join
from bitstep.diff.slots import Class, Slots, contents, scope_keys


class Repeated(NamedTuple):
    """What one step's recomputation showed."""

    compared: int
    unpaired: int
    """Scopes that were repeated in another order, and so not compared."""
    row: int
    """The first row of the recomputation that differs, in the step's rows; -1: none does."""


def repeated(rows: Rows, slots: Slots) -> Repeated | None:
    """Compare recomputation with its forward; None where nothing was recomputed."""
    number = rows.codes.number
    again = np.flatnonzero(rows.pass_ == number("recompute"))
    again = again[np.isin(rows.phase[again], (number("forward"), number("backward")))]
    if not len(again):
        return None
    first = (rows.pass_ == number("primary")) & (rows.phase == number("forward"))
    forward, repeat = _picked(rows, np.flatnonzero(first)), _picked(rows, again)
    repeat = dataclasses.replace(
        repeat,
        phase=np.full_like(repeat.phase, number("forward")),
        pass_=np.full_like(repeat.pass_, number("primary")),
    )
    pairs = pair(forward, repeat, slots)
    differ, skipped = _in_order(pairs, forward, repeat, slots)
    row = int(again[pairs.b[differ[0]]]) if len(differ) else -1
    return Repeated(len(pairs.a), skipped, row)


def _picked(rows: Rows, chosen: Ints) -> Rows:
    """Some rows of a step, in order."""
    columns = {
        field.name: getattr(rows, field.name)[chosen]
        for field in dataclasses.fields(rows)
        if isinstance(getattr(rows, field.name), np.ndarray)
    }
    return dataclasses.replace(rows, **columns, shapes=rows.shapes.take(chosen))


def _in_order(pairs: Pairs, forward: Rows, repeat: Rows, slots: Slots) -> tuple[Ints, int]:
    """Pairs that differ, in the order of the recomputation, without those of scopes that were
    repeated in another order; and how many such scopes there are."""
    differ = np.flatnonzero(pairs.differ)
    differ = differ[np.argsort(pairs.b[differ])]
    if not len(differ):
        return differ, 0
    scopes, classes = scope_keys(repeat), slots.classes(repeat)
    had, mine = set(_inputs(forward).tolist()), _inputs(repeat)
    skipped: set[int] = set()
    kept = []
    for at in differ.tolist():
        row = int(pairs.b[at])
        scope = int(scopes[row])
        if scope not in skipped and classes[row] == Class.INPUT and int(mine[row]) in had:
            skipped.add(scope)
        if scope not in skipped:
            kept.append(at)
    return np.array(kept, np.int64), len(skipped)


def _inputs(rows: Rows) -> Ints:
    """A number per (scope, op, slot, content): the same input, in whichever call."""
    return join(contents(rows), scope_keys(rows).view(np.int64), rows.op, rows.slot).view(np.int64)


def words(rows: Rows, found: Repeated, slots: Slots) -> tuple[str, str]:
    """A line, and a sentence that explains it."""
    row = found.row
    op, module, slot = (rows.text(name, row) for name in ("op", "module", "slot"))
    where = " in ".join(word for word in (op, module) if word) or "the program"
    kind = slots.classes(rows)[row]
    if kind == Class.RNG:
        return (
            f"recomputation draws new random numbers: {where}",
            "It draws from another state of the generator than the forward did.",
        )
    if kind == Class.INPUT:
        return (
            f"recomputation begins with another input: {where}",
            f"{slot} has other bits than in the forward: it was written in between, or comes from "
            "something that is not repeated.",
        )
    if kind == Class.ARGS:
        return (
            f"recomputation is told something else: {where}",
            "Its arguments that are not tensors differ from those in the forward.",
        )
    return (
        f"recomputation gives another result: {where}",
        f"{slot} has other bits than in the forward; what was recorded before it is equal.",
    )
