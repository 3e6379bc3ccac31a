"""Rows that are other ones, or missing, without meaning that the runs part.

1. A generator that was in another state before the first step was not seeded: what state it is in
   later says nothing. What was drawn from it shows by itself.
2. A program may free its model before the end of its last step is recorded: that step has the root
   of no tensors. It was not seen; it is no difference.
3. Where a life ends or is resumed the program does something else around the step than a run that
   goes on: calls that only one has there are none to report.
4. Forwards after the last step, without training, are counted as one more step. They are none.
5. A program that dies within a step never comes to its optimizer, or not to the end of it: the
   state that is recorded then is no end of a step, and settings that were not reached are no other
   settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from bitstep.diff.align import Pairs
from bitstep.diff.rows import Ints, Rows
from bitstep.diff.slots import BOUNDARY, Class, Slots
from bitstep.trace.schema import DIED

_SELDOM_SEEDED: Final = ("python", "numpy")
_OF_STEPS: Final = ("metric.loss", "root.grads", "root.params", "root.optimizer", "root.buffers")
NO_TENSORS: Final = int.from_bytes(
    hashlib.blake2b(b"bitstep recorder root\n", digest_size=8).digest(), "little"
)
"""The root of no tensors at all, as a recorder writes it."""


def unseeded(pairs: Pairs, a: Rows, slots: Slots, known: set[str], began: bool) -> Pairs:
    """Without the states of generators in `known`, to which those are added that differ now,
    where `a` is what came before the first step.

    Where that was not compared (`began`), generators that seldom are seeded count as such.
    """
    at = np.flatnonzero(pairs.differ)
    if not len(at):
        return pairs
    rows = pairs.a[at]
    streams = (slots.classes(a)[rows] == Class.RNG) & (a.op[rows] == a.codes.number(""))
    starts = streams & (a.phase[rows] == a.codes.number("start"))
    known.update(a.text("module", row) for row in rows[starts].tolist())
    if not began:
        names = {a.text("module", row) for row in rows[streams].tolist()}
        known.update(names & set(_SELDOM_SEEDED))
    numbers = [a.codes.number(name) for name in known]
    differ = pairs.differ.copy()
    differ[at[streams & np.isin(a.module[rows], numbers)]] = False
    return replace(pairs, differ=differ)


def lost_end(pairs: Pairs, a: Rows, b: Rows, slots: Slots) -> tuple[Pairs, bool]:
    """Without the state at the end of a step where one run had no model any more; and whether
    that was so."""
    gone = [_is_gone(rows, slots) for rows in (a, b)]
    if gone[0] == gone[1]:
        return pairs, False
    differ = pairs.differ & (slots.classes(a)[pairs.a] != Class.ROOT)
    only = [chosen[~_end_state(rows, chosen, slots)]
            for rows, chosen in ((a, pairs.only_a), (b, pairs.only_b))]  # fmt: skip
    return replace(pairs, differ=differ, only_a=only[0], only_b=only[1]), True


def unfinished(pairs: Pairs, a: Rows, b: Rows, slots: Slots, last: Sequence[bool]) -> Pairs:
    """Without the end of a step that one run never came to. `last`: whether the step is the last
    of each."""
    came = [
        bool((slots.classes(rows) == Class.HYPER).any()) and not _died(rows, slots)
        for rows in (a, b)
    ]
    if came[0] == came[1] or not last[came.index(False)]:
        return pairs
    if not all(has_trained(rows) or _died(rows, slots) for rows in (a, b)):
        return pairs
    end = (slots.classes(a) == Class.ROOT)[pairs.a] | _end_state(a, pairs.a, slots)
    ended = "ab"[came.index(False)]
    return without_tails(replace(pairs, differ=pairs.differ & ~end, ended=ended))


def other_work(pairs: Pairs, a: Rows, b: Rows, slots: Slots) -> bool:
    """Whether only one run trained in what both count as this step: the other ran forwards after
    its last step, on other data."""
    if has_trained(a) == has_trained(b) or _died(a, slots) or _died(b, slots):
        return False
    classes = slots.classes(a)
    differ = pairs.a[pairs.differ]
    row = differ[classes[differ] != Class.ROOT][:1]
    begins = np.isin(classes[row], (Class.RNG, Class.BATCH))
    return bool((begins | (a.phase[row] == a.codes.number("data"))).all())


def _died(rows: Rows, slots: Slots) -> bool:
    """Whether the program raised in this step, and ended."""
    gaps = np.flatnonzero(slots.classes(rows) == Class.GAP)
    return any(rows.text("op", row).startswith(DIED) for row in gaps.tolist())


def has_trained(rows: Rows) -> bool:
    """Whether a batch is a step: it holds a loss, or the state that an optimizer left."""
    numbers = [rows.codes.number(slot) for slot in _OF_STEPS]
    return bool(np.isin(rows.slot, numbers).any())


def without_tails(pairs: Pairs) -> Pairs:
    """Without rows that only one run has."""
    none = np.empty(0, np.int64)
    return replace(pairs, only_a=none, only_b=none)


def _is_gone(rows: Rows, slots: Slots) -> bool:
    chosen = rows.slot == rows.codes.number("root.params")
    return bool(np.any(chosen)) and bool(np.all(rows.digest[chosen] == np.uint64(NO_TENSORS)))


def _end_state(rows: Rows, chosen: Ints, slots: Slots) -> np.ndarray:
    """Which of the chosen rows are state at the end of a step."""
    classes = slots.classes(rows)[chosen]
    found: np.ndarray = np.isin(classes, BOUNDARY) & (rows.occurrence[chosen] == 1)
    return found
