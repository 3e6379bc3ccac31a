"""The initial state: what a run, or a life that was resumed, began with.

1. A resumed life: which tensors it did not get back, and what stands in their place.
2. A first life: the state before the first step, and the operation that made it another one.
"""

from __future__ import annotations

import numpy as np

from bitstep.diff.case import LETTER, Case
from bitstep.diff.difference import Kind
from bitstep.diff.findings import Finding
from bitstep.diff.load import Life
from bitstep.diff.localise import Parting
from bitstep.diff.slots import BOUNDARY, Class, Slots
from bitstep.diff.starts import Changed, exchanged

_SHOWN = 4
_WHAT = {
    "attr": "a plain tensor attribute: state_dict() does not hold it",
    "buffer": "a buffer; state_dict() leaves it out if it is not persistent",
    "param": "a parameter",
    "root.params": "record at level phase to know which parameter",
    "root.optimizer": "record at level phase to know which parameter's",
    "root.buffers": "record at level phase to know which buffer",
}


def restarted(parting: Parting, slots: Slots) -> Finding:
    """A resumed life began with another state than the other run had there."""
    mine, other = parting.restarted.upper(), "AB".replace(parting.restarted.upper(), "")
    life = parting.a if parting.restarted == "a" else parting.b
    moved = exchanged(list(parting.restart))
    names = list(dict.fromkeys(_name(item) for item in parting.restart))
    began = f"attempt {life.number} of {mine} began step {parting.step + 1}"
    listed = _listed(names)
    if moved:
        return Finding(
            Kind.INITIAL,
            f"{began} with optimizer state on other parameters",
            (*_exchanges(moved),
             "The values are the same under other names: optimizer state is loaded by position, "
             "and the order of the parameters changed."),
            "certain: the same bits stand under other names",
            hint="give parameters to the optimizer in a fixed order, or load its state by name",
        )  # fmt: skip
    return Finding(
        Kind.INITIAL,
        f"{began} without the right {listed}",
        (*_lost(parting, life, slots),
         f"All other tensors are those that {other} had after step {parting.step}."),
        "likely: a program may also change buffers between steps"
        if all(item.slot == "root.buffers" for item in parting.restart)
        else "certain: the state at the start of the attempt was recorded",
        hint="save and restore it with the checkpoint",
    )  # fmt: skip


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _name(item: Changed) -> str:
    if item.is_root:
        return {"params": "parameters", "optimizer": "optimizer state"}.get(
            item.slot.removeprefix("root."), item.slot.removeprefix("root.")
        )
    words = [] if item.slot in ("attr", "buffer", "param") else [item.slot.removeprefix("state.")]
    words += [] if item.part == "bits" else [item.part]
    return f"{item.name} ({' '.join(words)})" if words else item.name


def _lost(parting: Parting, life: Life, slots: Slots) -> list[str]:
    """A sentence for each kind of tensor that was not restored."""
    lines = []
    for slot in dict.fromkeys(item.slot for item in parting.restart):
        items = [item for item in parting.restart if item.slot == slot]
        what = _WHAT.get(slot, "optimizer state: " + slot.removeprefix("state."))
        names = _listed([_name(item) for item in items])
        fresh = all(_is_first_value(parting, life, item) for item in items)
        then = "; it has the value from before the first step again" if fresh else ""
        lines.append(f"{names}: {what}{then}.")
    return lines


def _is_first_value(parting: Parting, life: Life, item: Changed) -> bool:
    """Whether a tensor has the value that the other run had before its first step."""
    other = parting.b if life is parting.a else parting.a
    rows = other.rows(parting.process, 0)
    if rows is None or item.is_root:
        return False
    same = (rows.module == rows.codes.number(item.name)) & (
        rows.slot == rows.codes.number(item.slot)
    )
    same &= rows.part == rows.codes.number(item.part)
    found = np.flatnonzero(same & (rows.phase == rows.codes.number("start")))
    return bool(len(found)) and int(rows.digest[found[-1]]) == item.mine.digest


def _exchanges(moved: list[tuple[str, str, str]]) -> list[str]:
    slots = list(dict.fromkeys(slot for slot, _, _ in moved))
    pairs = list(dict.fromkeys((name, source) for _, name, source in moved))
    words = [f"{name} has that of {source}" for name, source in pairs[:_SHOWN]]
    more = f"; and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
    what = ", ".join(slot.removeprefix("state.") for slot in slots[:3])
    return [f"{what}: {'; '.join(words)}{more}."]


def first_state(case: Case, cause: Finding | None) -> Finding | None:
    """The state before the first step is another one; `cause` explains the first row of it."""
    if case.text("phase") != "start":
        return None
    rows = case.differing[0]
    classes = case.classes[0][rows]
    tensors = rows[np.isin(classes, BOUNDARY)]
    if not len(tensors) and not np.any(classes == Class.ROOT):
        return None
    a = case.sides[0]
    tensor_names = list(dict.fromkeys(a.text("module", row) for row in tensors.tolist()))
    names = tensor_names[:_SHOWN] or _alone(case)
    names = names or [a.text("slot", row) for row in rows[classes == Class.ROOT][:2].tolist()]
    more = f" and {len(tensor_names) - _SHOWN} more" if len(tensor_names) > _SHOWN else ""
    because = ["The runs did not begin with the same parameters: other seed, weights or code?"]
    if cause:
        because = [f"First on the way: {cause.title}.", *cause.because]
    return Finding(
        Kind.INITIAL,
        f"the state before the first step is another one: {', '.join(names)}{more}",
        tuple(because),
        "certain",
    )


def _alone(case: Case) -> list[str]:
    """Tensors of the state that only one run has."""
    found = []
    pairs = case.parting.pairs
    for side, only in ((0, pairs.only_a), (1, pairs.only_b)):
        chosen = only[np.isin(case.classes[side][only], BOUNDARY)]
        rows = case.sides[side]
        found += [f"{rows.text('module', r)} (only in {LETTER[side]})" for r in chosen.tolist()]
    return list(dict.fromkeys(found))[:_SHOWN]
