"""What a program loses when it restores: the state it saved against the state that it goes on with.

1. Where the command restores a checkpoint that an earlier process of ours has saved, the streams
   before its first step are compared with those at the moment of saving, by name.
2. Generators have moved on by then for a good reason, and are not compared; a number is lost if it
   is what a fresh process has, the data if they begin with the same batches once more.

It needs no list of what a checkpoint holds: this is what came back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bitstep.investigate.doctor.checkpoint import Effects, spoken
from bitstep.investigate.doctor.finding import Finding
from bitstep.investigate.doctor.runs import Process

_COMPARED: Final = (
    "parameters", "moments", "buffer", "attribute", "schedule", "scaler", "counter"
)  # fmt: skip
_NONE: Final = ("", "not there", True, "not there")


def resumed(
    lives: Sequence[Mapping[int, Process]], moved: Sequence[str], effects: Effects
) -> Iterator[Finding]:
    """What each restoring process of a command lost, of what one before it had saved.

    Args:
        lives: rank to process, for each time that the program trained, in order.
        moved: the streams that move.
        effects: whether step 2 changes with them.
    """
    for before, after in itertools.pairwise(lives):
        for rank, process in sorted(after.items()):
            saver = before.get(rank)
            saved = {event["path"] for p in before.values() for event in p["saves"]}
            if saver is not None and any(load["path"] in saved for load in process["loads"]):
                yield from _restarted(saver, process, rank)
                yield from _lost(saver, process, moved, effects, rank)


def has_resumed(lives: Sequence[Mapping[int, Process]], saved: set[str]) -> bool:
    """Whether a process loaded one of these files."""
    return any(e["path"] in saved for ranks in lives for p in ranks.values() for e in p["loads"])


def _lost(
    saver: Process, process: Process, moved: Sequence[str], effects: Effects, rank: int
) -> Iterator[Finding]:
    had = saver["at_save"] or _last(saver)
    now, fresh = process["inventory"].get("0", {}), saver["inventory"].get("0", {})
    for stream in moved:
        kind = stream.partition("/")[0]
        if kind not in _COMPARED or stream not in had:
            continue
        if kind == "counter" and (
            effects.get(stream) is not True or now.get(stream) != fresh.get(stream)
        ):
            continue
        before = {leaf[0]: leaf for leaf in had[stream]}
        after = {leaf[0]: leaf for leaf in now.get(stream, [])}
        lost = [path for path, leaf in before.items() if after.get(path, [0, 0])[1] != leaf[1]]
        if lost:
            yield _finding(stream, lost, before, after, effects.get(stream), rank, process)


def _last(process: Process) -> Mapping[str, Any]:
    """Of a rank that did not save itself."""
    steps = sorted(process["inventory"], key=int)
    return process["inventory"][steps[-1]] if steps else {}


def _restarted(saver: Process, process: Process, rank: int) -> Iterator[Finding]:
    """Loaders that begin with the batch that the saving process had begun with."""
    for loader in saver["loaders"]:
        theirs = next((o for o in process["loaders"] if o["name"] == loader["name"]), None)
        before, after = loader["batches"], theirs["batches"] if theirs else []
        if len(set(before)) > 1 and before[:2] == after[:2]:
            yield Finding(
                severity="missed by a checkpoint",
                what="the data start again from the beginning after a restore",
                where=f"DataLoader at {loader['name']}" + _on(rank, process),
                why="its position was not saved, or not restored: the same batches train twice",
                fix="save how many batches were consumed and skip them, or a loader's state_dict()",
                evidence="measured: the first two batches after the restore are those with which "
                "the process that saved had begun",
            )


def _on(rank: int, process: Process) -> str:
    return f" on rank {rank}" if process["world"] > 1 else ""


def _finding(
    stream: str,
    lost: Sequence[str],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    effect: bool | None,
    rank: int,
    process: Process,
) -> Finding:
    one = lost[0]
    is_number = before[one][1].startswith("number ")
    was, comes = (
        leaf[3] if is_number else leaf[1] for leaf in (before[one], after.get(one, _NONE))
    )
    moments = stream.startswith("moments/")
    swapped = moments and {before[p][1] for p in lost} == {after[p][1] for p in lost if p in after}
    return Finding(
        severity="missed by a checkpoint" if effect is not False else "note",
        what=f"{spoken(stream)} did not come back{_on(rank, process)}: "
        f"{len(lost)} of {len(before)} differ",
        where=", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else ""),
        why=(
            "they came back at other parameters: an optimizer's state_dict goes by position, and "
            "the order of the parameters is another in this process"
            if swapped
            else "the program restored its checkpoint, and went on with other bits than it saved"
        ),
        fix=(
            "register sub-modules in a fixed order (sorted names), or load moments by name"
            if swapped
            else "save it and load it back before the first step"
        ),
        evidence=f"measured: {one} was {was} when it was saved, and is {comes} before the first "
        "step after",
        count=len(lost),
    )
