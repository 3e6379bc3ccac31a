"""What a checkpoint of a program would miss: streams that move, are not saved, and matter.

1. A stream moves if it is another at the end of a step than before it.
2. It is missed if the bits that it had at the moment of saving are not in what was saved.
3. It matters if step 2 has other bits when it alone is perturbed at the end of step 1.

Missed and matters is a finding; missed and without an effect a note, or "cannot tell" for streams
that are known to act later than in the next step.

    facts = Facts(moved=moved_streams(base), saved=saved, effects={"attribute/bias": True})
    findings = list(missed(base, facts))
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bitstep.investigate.doctor.finding import Finding, Severity
from bitstep.investigate.doctor.runs import Process
from bitstep.investigate.doctor.saved import Saved
from bitstep.observe.examine.leaves import Leaf

Effects = Mapping[str, bool | None]
"""Stream to whether step 2 has other bits when it is perturbed; None or absent: not told."""

_VARIABLES: Final = ("counter", "tensor")
"""Kinds of which most are results on their way; only those that matter are told of."""
_LATER: Final = ("schedule", "scaler", "loader", "parameters", "moments")
"""Kinds that are state even where the next step does not show it."""
_PROCESSWIDE: Final = ("random/torch", "random/python", "random/numpy")
_FIX: Final = {
    "parameters": "save model.state_dict() of every module that trains",
    "moments": "save optimizer.state_dict(), and load it after the model",
    "gradients": "save at a step's end only, after zero_grad, or save the gradients as well",
    "buffer": "register it with persistent=True, or save it beside the state_dict",
    "attribute": "register it with register_buffer, so that state_dict() holds it",
    "hyperparameter": "save optimizer.state_dict(), which holds its param_groups",
    "schedule": "save the schedule's state_dict() and load it",
    "scaler": "save the GradScaler's state_dict() and load it",
    "random": "save its state, of every rank, and restore it last, after iterators are made",
    "loader": (
        "save how many batches were consumed, of every rank, and skip them on restore; or use a "
        "loader with a state_dict()"
    ),
    "counter": "save it with the rest, of every rank",
    "tensor": "save it with the rest, of every rank",
}


@dataclass(frozen=True)
class Facts:
    """What is known about the streams of a program."""

    moved: Sequence[str]
    saved: Saved | None
    effects: Effects = field(default_factory=dict)


def moved_streams(process: Process) -> list[str]:
    """Streams that are not the same before and after a step; by name, gradients last."""
    inventory = process["inventory"]
    zero, one, two = (inventory.get(step, {}) for step in ("0", "1", "2"))
    names = [name for name in {**one, **two} if _is_moving(name, zero, one, two)]
    return sorted(names, key=lambda name: (name.startswith(_VARIABLES), name == "gradients", name))


def _is_moving(name: str, *inventories: Mapping[str, Any]) -> bool:
    found = [inventory[name] for inventory in inventories if name in inventory]
    # Variables come to be while a program runs; state that a step makes is there from its end.
    is_new = len(found) < len(inventories) and not name.startswith(_VARIABLES)
    return is_new or any(one != other for one, other in itertools.pairwise(found))


def leaves_at_save(process: Process, stream: str) -> list[Leaf]:
    """The stream as it was when the program saved."""
    at = process["at_save"]
    last = process["inventory"].get("2", {})
    return [Leaf(*leaf) for leaf in at.get(stream, last.get(stream, []))]


def absent(process: Process, stream: str, saved: Saved) -> list[Leaf]:
    """The leaves of a stream that are not among what was saved."""
    leaves = leaves_at_save(process, stream)
    if stream.startswith("loader/") and _holds_a_position(saved):
        return []
    return [leaf for leaf in leaves if not saved.has(leaf)]


def _holds_a_position(saved: Saved) -> bool:
    """A loader that keeps its own state says how many batches it has given."""
    names = ("num_yielded", "sampler_iter_yielded", "samples_yielded", "num_batches_fetched")
    return any(leaf.path.rpartition(".")[2].strip("_") in names for leaf in saved.leaves)


def missed(process: Process, facts: Facts) -> Iterator[Finding]:
    """A finding for each stream that the checkpoint misses."""
    if facts.saved is None:
        return
    for stream in facts.moved:
        lost = absent(process, stream, facts.saved)
        if lost:
            yield from _missed(stream, lost, process, facts, facts.saved)


def _missed(
    stream: str, lost: Sequence[Leaf], process: Process, facts: Facts, saved: Saved
) -> Iterator[Finding]:
    kind = stream.partition("/")[0]
    effect = facts.effects.get(stream)
    like = _like(stream, lost, process, saved)
    if effect is False and (
        kind in (*_VARIABLES, "gradients", "hyperparameter") or _is_made_anew(stream)
    ):
        return
    if effect is None and kind in (*_VARIABLES, "gradients"):
        return
    total = len(leaves_at_save(process, stream))
    evidence = [f"measured: not in what {saved.where or 'the program'} saved at step {saved.step}"]
    evidence += [_said_of_effect(effect)]
    if like:
        evidence += [f"{like} is saved: it may follow from that"]
    elif (named := saved.named(lost[0])) is not None and kind in (
        "parameters",
        "moments",
        "buffer",
    ):
        evidence += [f"under {named.path} there is {named.said} with other bits"]
    yield Finding(
        severity=_severity(kind, effect, bool(like)),
        what=f"{spoken(stream)} would be missed: {_some(len(lost), total)}",
        where=_where(lost),
        why="a program that goes on from this checkpoint has it as a fresh process does",
        fix=_FIX[kind],
        evidence="; ".join(evidence),
        count=len(lost),
    )


def _is_made_anew(stream: str) -> bool:
    """A generator of a variable that nothing follows from is one that each step makes again."""
    return stream.startswith("random/") and stream not in _PROCESSWIDE


def _severity(kind: str, effect: bool | None, follows: bool) -> Severity:
    """Of a stream that is not saved."""
    if follows and kind == "loader":
        return "note"  # a program that skips as many batches has it back
    if effect:
        return "missed by a checkpoint"
    return "unknown" if effect is None or kind in _LATER else "note"


def _like(stream: str, lost: Sequence[Leaf], process: Process, saved: Saved) -> str:
    """The name of a saved number from which a position or counter may follow."""
    if not stream.startswith(("loader/", "counter/")):
        return ""
    numbers = [int(leaf.said) for leaf in lost if leaf.said.isdecimal()]
    if stream.startswith("loader/"):
        size = next((o["batch"] for o in process["loaders"] if stream.endswith(o["name"])), 0) or 1
        # Batches or rows may be counted, or steps where each takes several batches.
        numbers = [n * by for n in numbers[:1] for by in (1, size)] + [saved.step]
    found = (saved.like(f"number {number}") for number in numbers)
    return next(filter(None, found), "")


def _said_of_effect(effect: bool | None) -> str:
    if effect is None:
        return "whether step 2 changes with it could not be told"
    if effect:
        return "step 2 has other bits when it is perturbed"
    return "step 2 has the same bits when it is perturbed; two steps cannot tell more"


def spoken(stream: str) -> str:
    """A stream in words: "the plain tensor attribute expert_bias"."""
    kind, _, name = stream.partition("/")
    words = {
        "parameters": "parameters",
        "gradients": "gradients",
        "moments": f"the optimizer's {name}",
        "buffer": f"the buffer {name}",
        "attribute": f"the plain tensor attribute {name}",
        "hyperparameter": f"the optimizer's setting {name}",
        "schedule": f"the schedule {name}",
        "scaler": f"the loss scale of {name}",
        "random": f"the generator {name}",
        "loader": f"the position of the loader at {name}",
        "counter": f"the number {name}",
        "tensor": f"the tensor {name}",
    }
    return words[kind]


def _some(lost: int, total: int) -> str:
    if lost == total:
        return "it is not saved"
    return f"{lost} of its {total} parts are not saved"


def _where(lost: Iterable[Leaf]) -> str:
    names = list(dict.fromkeys(leaf.path for leaf in lost))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def lost_by_ranks(
    ranks: Mapping[int, Process], moved: Sequence[str], saved: Saved
) -> Iterator[tuple[int, str, list[Leaf]]]:
    """Rank, stream and leaves that this rank has with bits of its own, and that nobody saved.

    Ranks other than 0 are read at the end of the step, not at the save: what they have in common
    with rank 0 by then is judged as its.
    """
    first = ranks.get(0)
    for rank, process in sorted(ranks.items()):
        if rank == 0 or first is None:
            continue
        mine, theirs = (p["inventory"].get(str(saved.step), {}) for p in (process, first))
        for stream in moved:
            if stream == "gradients":
                continue
            same = {(leaf[0], leaf[1]) for leaf in theirs.get(stream, [])}
            own = [Leaf(*leaf) for leaf in mine.get(stream, []) if (leaf[0], leaf[1]) not in same]
            lost = [leaf for leaf in own if not saved.has(leaf)]
            if lost:
                yield rank, stream, lost


def of_other_ranks(ranks: Mapping[int, Process], facts: Facts) -> Iterator[Finding]:
    """A finding for each stream of another rank that the checkpoint misses."""
    if facts.saved is not None:
        for rank, stream, lost in lost_by_ranks(ranks, facts.moved, facts.saved):
            yield from _of_rank(rank, stream, lost, facts, facts.saved)


def _of_rank(
    rank: int, stream: str, lost: Sequence[Leaf], facts: Facts, saved: Saved
) -> Iterator[Finding]:
    kind, effect = stream.partition("/")[0], facts.effects.get(stream)
    if not effect and kind in (*_VARIABLES, "hyperparameter"):
        return
    named = saved.named(lost[0])
    other = f"; {named.path} is saved as {named.said}, which is of another rank" if named else ""
    yield Finding(
        severity="missed by a checkpoint" if effect else "unknown",
        what=f"{spoken(stream)} of rank {rank} would be missed",
        where=_where(lost),
        why="it is another on each rank, and what is saved is that of one",
        fix="save it for every rank, keyed by rank",
        evidence=f"measured at step {saved.step}: rank {rank} has {lost[0].said}{other}; "
        + _said_of_effect(effect),
        count=len(lost),
    )
