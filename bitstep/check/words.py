"""From what the checks see to findings: titles, reasons, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bitstep.check import recompute
from bitstep.check.collectives import Uneven
from bitstep.check.finding import Finding, Kind, Place, ranks_text
from bitstep.check.gathers import Stale
from bitstep.check.recompute import Repeated
from bitstep.check.replicas import Apart
from bitstep.check.writes import Written
from bitstep.diff.rows import Rows
from bitstep.diff.slots import Slots

TWO: Final = "they differ; of two, nothing tells which is right"
ODD: Final = "likely: most ranks agree, which is not to say that they are right"
_SHOWN: Final = 3


def place(rows: Rows, row: int) -> Place:
    """Where a record belongs."""
    return Place(
        rows.text("phase", row), rows.text("module", row), rows.text("op", row),
        int(rows.occurrence[row]), rows.text("slot", row),
    )  # fmt: skip


def of_replicas(attempt: int, together: Sequence[Apart], lone: Sequence[str]) -> Finding:
    """Tensors of the same ranks that came apart at the same step."""
    first = together[0]
    who = ranks_text(first.odd)
    others = tuple(rank for rank in first.among if rank not in first.odd)
    title = (
        f"{_tensor(first)} on {who} differs from {ranks_text(others)}"
        if first.told else f"{_tensor(first)} differs between {who}"
    )  # fmt: skip
    return Finding(
        Kind.REPLICAS, attempt, first.step, first.odd, first.told,
        Place(first.phase, first.module, "", first.occurrence, first.slot),
        f"{title} since step {first.step}", (_moment(first), *lone), ODD if first.told else TWO,
        tuple(dict.fromkeys(map(_tensor, together[1:]))),
    )  # fmt: skip


def _tensor(apart: Apart) -> str:
    return f"{apart.module or 'state'} ({apart.slot})"


def _moment(apart: Apart) -> str:
    """When within the step the ranks parted."""
    if apart.phase == "start":
        return "They differ before the first step."
    if apart.slot in ("grad", "root.grads"):
        return "The gradients differ as the optimizer finds them, after their reduction."
    if apart.occurrence == 0 and apart.module:
        return "They differ as the optimizer finds them, and parted since the step before ended."
    return "They differ as the step leaves them."


def of_collective(attempt: int, step: int, item: Uneven) -> Finding:
    """A result that members did not get alike, or a shard that is not what was put in."""
    members, op, phase, _, _, occurrence = item.call
    who = ranks_text(item.odd)
    if item.source is None:
        title = f"{op} gave {who} {'another result' if item.told else 'different results'}"
        why = f"Its members {members} must all get the same {item.slot}."
        sure = ODD if item.told else TWO
    else:
        title = f"{op} gave {who} another shard than rank {item.source} put in,"
        why = f"{item.slot} must have the bits of that rank's input."
        sure = "certain that they differ; sender, network and receiver look the same"
    return Finding(
        Kind.COLLECTIVE if item.source is None else Kind.GATHER, attempt, step, item.odd,
        item.told, Place(phase, members, op, int(occurrence), item.slot),
        f"{title} in step {step}", (why,), sure,
    )  # fmt: skip


def of_gather(attempt: int, step: int, stale: Stale, rows: Rows) -> Finding:
    """A parameter that an operation read, and that is not what its shards hold."""
    at = place(rows, stale.row)
    return Finding(
        Kind.GATHER, attempt, step, stale.ranks, True, at,
        f"{stale.name} as {ranks_text(stale.ranks)} computed with it in step {step} is not what "
        "its shards hold",
        (f"{at.op} in {at.module} read it as {at.slot}; the shards that the step before left add "
         "up to other bits.",),
        "certain that they differ; a shard that was written to since looks the same",
    )  # fmt: skip


def of_recompute(
    attempt: int, step: int, ranks: tuple[int, ...], rows: Rows, found: Repeated, slots: Slots
) -> Finding:
    """Recomputation that is not its forward; `rows` are those of the first of the ranks."""
    line, why = recompute.words(rows, found, slots)
    return Finding(
        Kind.RECOMPUTE, attempt, step, ranks, True, place(rows, found.row),
        f"{line}, on {ranks_text(ranks)} since step {step}",
        (why, "The gradients that follow belong to another forward than the loss."),
        "certain: both are records of the same step",
    )  # fmt: skip


def of_write(
    attempt: int, step: int, ranks: tuple[int, ...], rows: Rows, written: Sequence[Written]
) -> Finding:
    """Tensors that were written to besides; `rows` are those of the first of the ranks."""
    first = written[0]
    slot, name, _ = first.name
    who = f"{name} ({slot}) on {ranks_text(ranks)}"
    if first.within:
        title = f"{who} ends step {step} with other bits than its last write left"
    else:
        title = f"{who} was written to before the optimizer of step {step}"
    because = [f"It was written to after {first.after} and before {first.before}."]
    if first.writers:
        because.append(f"{', '.join(first.writers[:_SHOWN])} wrote into its storage.")
        sure = "certain: an operation that was recorded wrote a part of it"
    else:
        because.append("No recorded operation made these bits.")
        sure = "likely: a write of a kind that this level does not record would look the same"
    return Finding(
        Kind.WRITE, attempt, step, ranks, True, place(rows, first.row), title, tuple(because),
        sure, tuple(f"{w.name[1]} ({w.name[0]})" for w in written[1:]),
    )  # fmt: skip
