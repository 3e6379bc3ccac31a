"""What a slot means for a comparison: a class per slot, a level per row, the keys that pair rows.

1. `Class` says what role a row has: an input, an output, a boundary of state, a metric ...
2. `Slots` looks classes up by the number of the word, for whole columns.
3. `levels` gives the level a row belongs to; `keys` the number of its site.

>>> class_of("in.0[Net.0.weight:grad]").name, class_of("state.exp_avg").name
('INPUT', 'STATE')
"""

from __future__ import annotations

import enum
import re
from typing import Final

import numpy as np
import numpy.typing as npt

from bitstep.diff.rows import Codes, Mask, Rows, Sums, join

LEVELS: Final = ("step", "phase", "module", "op")
COLLECTIVES: Final = ("c10d.", "c10d::", "_c10d_functional", "c10d_functional")
"""How the names of collectives and p2p operations begin."""


class Class(enum.IntEnum):
    """The role of a row. Rows below RNG are never compared."""

    NOTHING = 0
    LEVEL = 1
    AT = 2
    COUNT = 3
    GAP = 4
    WORLD = 5
    LAYOUT = 6
    RNG = 10
    ARGS = 11
    INPUT = 12
    OUTPUT = 13
    BATCH = 14
    METRIC = 15
    HYPER = 16
    PARAM = 17
    GRAD = 18
    STATE = 19
    BUFFER = 20
    ROOT = 21


BOUNDARY: Final = (Class.PARAM, Class.GRAD, Class.STATE, Class.BUFFER)
"""State that is hashed afresh at every phase boundary."""

_EXACT: Final = {
    "level": Class.LEVEL,
    "gap": Class.GAP,
    "world": Class.WORLD,
    "layout": Class.LAYOUT,
    "rng": Class.RNG,
    "args": Class.ARGS,
    "batch": Class.BATCH,
    "param": Class.PARAM,
    "grad": Class.GRAD,
    "buffer": Class.BUFFER,
    "attr": Class.BUFFER,
    "root": Class.ROOT,
}
_PREFIX: Final = (
    ("at.", Class.AT),
    ("count.", Class.COUNT),
    ("args.", Class.HYPER),
    ("metric.", Class.METRIC),
    ("state.", Class.STATE),
    ("root.", Class.ROOT),
    ("in.", Class.INPUT),
    ("grad_out.", Class.INPUT),
    ("out.", Class.OUTPUT),
    ("mutated.", Class.OUTPUT),
    ("grad_in.", Class.OUTPUT),
)
_NAMED: Final = re.compile(r"\[(?P<name>[^\]:]*[^\]:\d][^\]:]*)(?::(?P<what>[^\]]*))?\]")


def class_of(slot: str) -> Class:
    """The class of a slot by its name; an unknown name is compared, as an output."""
    if slot in _EXACT:
        return _EXACT[slot]
    return next((kind for start, kind in _PREFIX if slot.startswith(start)), Class.OUTPUT)


def named(slot: str) -> tuple[str, str] | None:
    """("Net.0.weight", "grad") of "in.0[Net.0.weight:grad]": the tensor that a slot names."""
    match = _NAMED.search(slot)
    return (match["name"], match["what"] or "param") if match else None


class Slots:
    """Facts about words, looked up by number for whole columns; grows with its `Codes`."""

    def __init__(self, codes: Codes) -> None:
        self._codes = codes
        self._classes = np.empty(0, np.int8)
        self._collective = np.empty(0, np.bool_)

    def classes(self, rows: Rows) -> npt.NDArray[np.int8]:
        """The class of each row."""
        self._grow()
        found: npt.NDArray[np.int8] = self._classes[rows.slot]
        return found

    def collective(self, rows: Rows) -> Mask:
        """Which rows belong to a collective or p2p operation."""
        self._grow()
        found: Mask = self._collective[rows.op]
        return found

    def _grow(self) -> None:
        new = self._codes.words[len(self._classes) :]
        if new:
            classes = np.array([class_of(word) for word in new], np.int8)
            collective = np.array([word.startswith(COLLECTIVES) for word in new], np.bool_)
            self._classes = np.concatenate([self._classes, classes])
            self._collective = np.concatenate([self._collective, collective])


_LEVEL: Final = np.full(max(Class) + 1, 3, np.int8)
"""Of each class, the level of its rows, where the op does not say more."""
_LEVEL[[Class.ROOT, Class.METRIC, Class.HYPER]] = 0
_LEVEL[[*BOUNDARY, Class.BATCH]] = 1


def levels(rows: Rows, slots: Slots, classes: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """The level (index in LEVELS) that each row belongs to."""
    no_op = rows.op == rows.codes.number("")
    deep = _LEVEL[classes]
    deep[no_op & (deep == 3)] = 2
    deep[slots.collective(rows)] = 1
    deep[(classes == Class.BATCH) & (rows.module == rows.codes.number(""))] = 0
    deep[no_op & (classes == Class.RNG)] = 0
    return deep


def recorded_level(rows: Rows, slots: Slots) -> int:
    """The level at which a step was recorded: its `level` row, or else its deepest row."""
    classes = slots.classes(rows)
    said = np.flatnonzero(classes == Class.LEVEL)
    if len(said):
        return int(min(rows.digest[said[0]], 3))
    compared = classes >= Class.RNG
    return int(levels(rows, slots, classes)[compared].max(initial=0))


def scope_keys(rows: Rows) -> Sums:
    """A number per (phase, pass, microbatch, module)."""
    return join(_zeros(rows), rows.phase, rows.pass_, rows.microbatch, rows.module)


def call_keys(rows: Rows, scopes: Sums) -> Sums:
    """A number per call: its scope, op and occurrence."""
    return join(scopes, rows.op, rows.occurrence, rows.rank)


def keys(rows: Rows, scopes: Sums) -> Sums:
    """A number per site."""
    return join(call_keys(rows, scopes), rows.slot, rows.part)


def tokens(rows: Rows) -> Sums:
    """A number per kind of row within a scope: what stays when calls before it come or go."""
    return join(_zeros(rows), rows.op, rows.slot, rows.part, rows.rank)


def contents(rows: Rows) -> Sums:
    """A number per content: equal ones, equal bits, dtype, shape and place."""
    return join(rows.digest, rows.dtype, rows.form.view(np.int64))


def _zeros(rows: Rows) -> Sums:
    return np.zeros(len(rows), np.uint64)
