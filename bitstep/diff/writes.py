"""Where bits came from: writes that were not recorded, operations that only one run ran, origins.

1. Of an input or a tensor of state that differs, its last producer is sought in both runs.
2. A producer that matched wrote equal bits: something changed them since, between two places.
3. A producer that only one run has is named: an operation too many, or another kernel.
4. Inputs that match with outputs that do not are an origin.
"""

from __future__ import annotations

import numpy as np

from bitstep.diff.case import LETTER, Case, site
from bitstep.diff.difference import Kind
from bitstep.diff.findings import Finding, only_ops
from bitstep.diff.slots import BOUNDARY, LEVELS, Class
from bitstep.records import Flag

_SHOWN = 4
_PHASES = {
    "start": "before the first step",
    "data": "while data are made",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "reduce": "in the reduction of gradients",
    "clip": "in clipping",
    "scale": "in scaling",
    "optimizer": "in the optimizer step",
    "gather": "in gathering parameters",
}


def written(case: Case) -> Finding | None:
    """An input or a tensor of state differs: by whom was it written last?"""
    if case.kind is Class.OUTPUT and not case.text("op"):
        return _handed_on(case)
    if case.kind is not Class.INPUT and case.kind not in BOUNDARY:
        return None
    known = [_producer(case, side) for side in (0, 1)]
    matched = [row is not None and case.matched(side, row) for side, row in enumerate(known)]
    alone = [row is not None and case.partner[side][row] < 0 for side, row in enumerate(known)]
    if all(alone):
        return _span(case)
    if any(alone):
        side = alone.index(True)
        return _extra_writer(case, side, known[side])
    if any(matched):
        return _other_call(case) or _changed_since(case, known, matched)
    return _no_producer(case)


def _other_call(case: Case) -> Finding | None:
    """What was read is, in both runs, what its writer wrote: they read results of other calls."""
    made = case.producer(0), case.producer(1)
    if made[0] is None or made[1] is None or int(case.partner[0][made[0]]) == made[1]:
        return None
    rows = case.sides
    if any(rows[s].digest[made[s]] != rows[s].digest[case.row[s]] for s in (0, 1)):
        return None
    return Finding(
        Kind.ORDER,
        f"{site(rows[0], case.row[0])} reads the results of other calls",
        (f"{case.text('slot')} is what {site(rows[0], made[0])} made in A, and "
         f"{site(rows[1], made[1])} in B: calls of other contents.",
         "The same calls ran in another order: a set, a dictionary, threads?"),
        "certain that it reads another call's result; likely that only their order differs",
        hint="run them in a fixed order: sort what is iterated",
    )  # fmt: skip


def _handed_on(case: Case) -> Finding | None:
    """What a module gives back differs though the operation that made it gave equal bits, or
    though it is a parameter that nothing recorded has written: Megatron's layers give back their
    bias, to be added later."""
    # Where all operations are there, what had these bits last made them, or is the same tensor.
    all_ops = case.parting.pairs.level == len(LEVELS) - 1
    made = [case.source(side) for side in (0, 1)]
    known = [row if row is not None and (all_ops or case.sides[side].text("op", row)) else None
             for side, row in enumerate(made)]  # fmt: skip
    matched = [row is not None and case.matched(side, row) for side, row in enumerate(known)]
    return _changed_since(case, known, matched) if any(matched) else _no_producer(case)


def _producer(case: Case, side: int) -> int | None:
    """The row that wrote the bits: by the writer column, or the last row with the same bits."""
    row = case.producer(side)
    return case.source(side) if row is None else row


def _changed_since(case: Case, known: list[int | None], matched: list[bool]) -> Finding:
    """The producer wrote the same bits in both runs, and they are not the same any more."""
    # Where both were found, both are partners, or the later one is nearer to what happened.
    side = max((s for s in (0, 1) if matched[s]), key=lambda s: known[s] or 0)
    row = known[side]
    assert row is not None
    rows = (row, int(case.partner[0][row])) if side == 0 else (int(case.partner[1][row]), row)
    for other in (0, 1):
        extra = _extra_writes(case, other, rows[other])
        if extra:
            return _extra_writer(case, other, extra[0])
    after = site(case.sides[side], row)
    return _unseen(case, f"after {after}")


def _extra_writes(case: Case, side: int, after: int) -> list[int]:
    """Rows of calls that only this run made, between a row and the case, that wrote in place."""
    pairs, rows = case.parting.pairs, case.sides[side]
    only = pairs.only_a if side == 0 else pairs.only_b
    between = only[(only > after) & (only < case.row[side])]
    return [row for row in between.tolist() if rows.text("slot", row).startswith("mutated.")]


def _extra_writer(case: Case, side: int, row: int | None) -> Finding:
    assert row is not None
    rows, mine, other = case.sides[side], LETTER[side], LETTER[1 - side]
    tensor = case.tensor()
    what = f"{tensor[0]} ({tensor[1]})" if tensor else f"what {case.text('slot')} reads"
    return Finding(
        Kind.MISSING,
        f"{mine} ran {site(rows, row)}, and {other} did not",
        (f"It wrote {rows.text('slot', row)}; after it {what} differs at "
         f"{site(case.sides[0], case.row[0])}.",
         "All records before it are equal."),
        "likely: it is the only recorded write that the other run lacks",
        (side, row),
    )  # fmt: skip


def _span(case: Case) -> Finding:
    """Both runs computed it, by other operations."""
    ops = [only_ops(case, side) or "nothing else" for side in (0, 1)]
    tensor = case.tensor()
    what = f"{tensor[0]} ({tensor[1]})" if tensor else case.text("slot")
    return Finding(
        Kind.ORIGIN,
        f"{_PHASES.get(case.text('phase'), case.text('phase'))} the runs used other operations: "
        f"A {ops[0]}, B {ops[1]}",
        (f"The inputs of this part are equal in both; {what} is the first result that differs.",
         "Other kernels round differently."),
        "certain: every record before this part is equal",
        hint="use the same implementation in both (foreach, fused, compiled or not)",
    )  # fmt: skip


def _unseen(case: Case, after: str | None, certain: bool = True) -> Finding:
    tensor = case.tensor()
    owner = case.text("op") or case.text("module")
    what = f"{tensor[0]} ({tensor[1]})" if tensor else f"{case.text('slot')} of {owner}"
    here = site(case.sides[0], case.row[0])
    since = (f"It was equal {after}, and differs at {here}." if after else
             f"It differs at {here}; no recorded operation made it.")  # fmt: skip
    between = "between the two" if after else "before it"
    return Finding(
        Kind.UNSEEN,
        f"{what} was changed by something that was not recorded",
        (since,
         f"Every recorded operation {between} matches: look for another thread, NumPy, a kernel "
         "outside of PyTorch, or a fault of the device."),
        ("certain that it changed there" if certain else "likely")
        + ": no recorded operation explains it",
    )  # fmt: skip


def _no_producer(case: Case) -> Finding | None:
    """Nothing with these bits was recorded in this step: look at the state before it."""
    tensor, all_ops = case.tensor(), case.parting.pairs.level == len(LEVELS) - 1
    if tensor is None:
        # Between modules there are operations that only level op records.
        return _unseen(case, _known_since(case), certain=False) if case.text("op") else None
    # Without operations a program may have written gradients, and an optimizer what it leaves.
    is_kept = tensor[1] != "grad" and int(case.sides[0].occurrence[case.row[0]]) == 0
    before = _boundary_before(case, tensor) if all_ops or is_kept else None
    return _unseen(case, before, certain=all_ops) if before else None


def _known_since(case: Case) -> str | None:
    if case.read_before is not None:
        return f"at {site(case.sides[0], case.read_before)}"
    return None if case.kept is None else (
        f"after {site(*case.kept)}, of step {case.parting.step - 1}")  # fmt: skip


def _boundary_before(case: Case, tensor: tuple[str, str]) -> str | None:
    """In words, the last boundary at which this tensor was hashed and equal."""
    rows, last = case.sides[0], case.row[0]
    same = np.isin(case.classes[0][:last], BOUNDARY)
    same &= rows.module[:last] == rows.codes.number(tensor[0])
    if rows.text("part", last) != "bits":
        same &= rows.part[:last] == rows.part[last]
    if case.kind in BOUNDARY:
        same &= rows.slot[:last] == rows.slot[last]
    else:
        same &= rows.slot[:last] == rows.codes.number(tensor[1])
    found = np.flatnonzero(same)
    if len(found):
        return f"at {site(rows, int(found[-1]))}"
    return f"at the end of step {case.parting.step - 1}" if case.parting.step > 0 else None


def carried_write(case: Case) -> Finding | None:
    """An output differs because an input was changed that was not hashed again."""
    if case.kind is not Class.OUTPUT:
        return None
    for row in case.call(0).tolist():
        if not case.sides[0].flags[row] & Flag.CARRIED or row >= case.row[0]:
            continue
        tensor = case.tensor_of(0, row)
        if tensor and _differs_later(case, tensor, row):
            return Finding(
                Kind.UNSEEN,
                f"{tensor[0]} ({tensor[1]}) was changed by something that was not recorded",
                (f"It was equal when it was last hashed, {_last_hash(case, row)}.",
                 f"{site(case.sides[0], case.row[0])} is the first that shows it, and its next "
                 "boundary differs, with no recorded write between."),
                "certain that it changed between the two",
            )  # fmt: skip
    return None


def _last_hash(case: Case, row: int) -> str:
    rows = case.sides[0]
    fresh = rows.flags[:row] & np.uint32(Flag.CARRIED) == 0
    found = np.flatnonzero(fresh & (rows.digest[:row] == rows.digest[row]))
    return f"at {site(rows, int(found[-1]))}" if len(found) else "before this step"


def _differs_later(case: Case, tensor: tuple[str, str], row: int) -> bool:
    """Whether the next boundary of a tensor differs and nothing recorded wrote it before."""
    rows, pairs = case.sides[0], case.parting.pairs
    later = np.flatnonzero(
        (rows.module == rows.codes.number(tensor[0]))
        & (rows.slot == rows.codes.number(tensor[1]))
        & (np.arange(len(rows)) > row)
    )
    if not len(later):
        return False
    # The optimizer is what writes parameters and moments; before it they stay as they are.
    is_before = rows.occurrence[later[0]] == 0
    return bool(is_before and later[0] in pairs.a[pairs.differ])


def origin(case: Case) -> Finding | None:
    """All inputs match and an output does not."""
    if case.kind is Class.OUTPUT and (case.text("op") or case.parting.pairs.level == 2):
        return _op_origin(case)
    return _coarse_origin(case)


def _op_origin(case: Case) -> Finding:
    rows, row = case.sides[0], case.row[0]
    call = [r for r in case.call(0).tolist() if r < row and case.classes[0][r] == Class.INPUT]
    carried = [r for r in call if rows.flags[r] & Flag.CARRIED]
    inputs = ("It has no recorded input", "Its input is equal")[len(call)] if len(call) < 2 else (
        f"All {len(call)} inputs are equal")  # fmt: skip
    because = [f"{inputs}, {case.text('slot')} {'is not' if call else 'differs'}."]
    if rows.flags[row] & Flag.COMPILED:
        because.append("It is a compiled region, recorded at its boundary.")
    sure = "certain: every input was hashed there"
    hint = ""
    if carried:
        sure = (f"likely: {len(carried)} of its inputs were not hashed again there, so an unseen "
                "write to them would look the same")  # fmt: skip
        hint = "rehash"
    what = site(rows, row) if case.text("op") else f"module {case.text('module')}"
    return Finding(Kind.ORIGIN, f"{what} gives other bits for equal inputs", tuple(because), sure,
                   hint=hint)  # fmt: skip


def _coarse_origin(case: Case) -> Finding:
    """At a level without operations: the part of the step that the difference lies in."""
    phase, slot = case.text("phase"), case.text("slot")
    part = _PHASES.get(phase, f"in phase {phase}")
    if slot.startswith("metric.loss"):
        part = "in the forward pass"
    elif slot == "metric.grad_norm" and not _has_gradients(case):
        part = "in the backward pass, or in the reduction or clipping of gradients"
    elif case.kind is Class.GRAD and phase == "optimizer":
        part = "between the backward pass and the optimizer"
    elif slot == "root.grads":
        part = "in the backward pass or the reduction of gradients"
    what = f"{slot} of {case.text('module')}" if case.text("module") else slot
    level = LEVELS[case.parting.pairs.level]
    after = phase == "optimizer" and case.kind in (Class.PARAM, Class.STATE, Class.ROOT)
    stray = ", and a write after it would look the same" if after else ""
    return Finding(
        Kind.ORIGIN,
        f"{part}: {what} is the first record that differs",
        (_before(case),),
        f"certain down to level {level}; the operation was not recorded{stray}",
        hint="deeper" if level != "op" else "",
    )


def _has_gradients(case: Case) -> bool:
    """Whether gradients were compared before the explained row."""
    pairs = case.parting.pairs
    return bool((case.classes[0][pairs.a[pairs.a < case.row[0]]] == Class.GRAD).any())


def _before(case: Case) -> str:
    """In words, what matched in this step before the difference."""
    rows, pairs = case.sides[0], case.parting.pairs
    mine = pairs.a[pairs.a < case.row[0]]
    classes = set(case.classes[0][mine].tolist())
    known = [
        (Class.BATCH, "the batch"), (Class.RNG, "the random states"),
        (Class.PARAM, "the parameters"), (Class.HYPER, "the settings"),
        (Class.METRIC, "the metrics so far"), (Class.GRAD, "the gradients so far"),
    ]  # fmt: skip
    words = [text for kind, text in known if kind in classes]
    if not words:
        return f"The last record that is equal: {site(rows, int(mine[-1]))}." if len(mine) else (
            "It is the first record of the step.")  # fmt: skip
    return f"Equal in this step before it: {', '.join(words)}."
