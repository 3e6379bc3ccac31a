"""The streams of a program: what its bits depend on, who seeded it, what a checkpoint would miss.

1. Two runs of two steps (`runs`): as it is, and with all that should not matter changed.
   Where they part, up to four more tell which change it was (`settings`).
2. The first goes on until the program saves. What it saved is read back and compared with every
   live stream (`saved`, `checkpoint`).
3. Streams that move are perturbed one by one, in forks of one more run: does step 2 change?
4. Where it saved, the command runs once more: a program that goes on from its checkpoint by itself
   shows what it lost (`resumed`).

A clean program that does not save takes 3 runs, one that does 4. Of `bitstep pretrain` the
controls of `prove` say the same (`engine`).

>>> examine_streams(["python", "train.py"], Path("doctor"))[0].what  # doctest: +SKIP
'the plain tensor attribute expert_bias would be missed: it is not saved'
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bitstep.investigate.doctor import generators, loaders
from bitstep.investigate.doctor.checkpoint import (
    Facts,
    absent,
    lost_by_ranks,
    missed,
    moved_streams,
    of_other_ranks,
    spoken,
)
from bitstep.investigate.doctor.effects import effects_of
from bitstep.investigate.doctor.engine import examine_engine, recipe_of
from bitstep.investigate.doctor.finding import Finding
from bitstep.investigate.doctor.resumed import has_resumed, resumed
from bitstep.investigate.doctor.runs import Process, Runs, attempts
from bitstep.investigate.doctor.saved import Saved, read_saved
from bitstep.investigate.doctor.settings import of_settings
from bitstep.launch.examined import Examined

REBUILDS: Final = 3
"""Processes from which on the buckets of DDP change sums: two numbers have one sum in any order."""


def examine_streams(command: Sequence[str], folder: Path) -> tuple[Finding, ...]:
    """Run the program a few times for two steps, in `folder`, and say what was found.

    "{run}" in a word of the command becomes a folder of each run. Raises UsageError where there
    is no such command, RunError where `folder` cannot be written.
    """
    recipe = recipe_of(command)
    if recipe is not None:
        return examine_engine(recipe, folder / "prove")
    runs = Runs(command, folder)
    base = runs.base()
    lives = attempts(base)
    if not lives or not lives[0] or not any(p["steps"] for p in lives[0].values()):
        return (_no_steps(base),)
    first = lives[0][min(lives[0])]
    findings = [*of_settings(runs, base, first)]
    findings += loaders.of_iterators(first)
    findings += generators.drawn_in_backward(first)
    findings += [f for ranks in lives for p in ranks.values() for f in loaders.after_restore(p)]
    findings += _of_checkpoint(runs, base)
    findings += _of_buckets(first)
    findings += _of_notes(first)
    findings += [_summary(runs, first)]
    return tuple(dict.fromkeys(findings))


def _of_checkpoint(runs: Runs, base: Examined) -> Iterator[Finding]:
    lives = attempts(base)
    ranks = lives[0]
    first = ranks[min(ranks)]
    moved = moved_streams(first)
    events = [e for p in ranks.values() for e in p["saves"]]
    step = max((e["step"] for e in events if e["step"]), default=0)
    saved = read_saved([e for e in events if e["step"] == step and step], base.folder)
    lost = [s for s in moved if saved is None or absent(first, s, saved)]
    if saved is not None:
        others = {stream for _, stream, _ in lost_by_ranks(ranks, moved, saved)}
        lost += [stream for stream in moved if stream in others - {*lost}]
    effects = effects_of(runs, base, lost)
    facts = Facts(moved, saved, effects)
    yield from missed(first, facts)
    yield from of_other_ranks(ranks, facts)
    if saved is None:
        yield _never_saved(first, facts)
    else:
        yield from _of_files(saved)
    if saved is not None and len(lives) == 1 and saved.paths:
        once_more = attempts(runs.resume(base))
        if has_resumed(once_more[:1], set(saved.paths)):
            lives = [ranks, *once_more[:1]]
            for process in once_more[0].values():
                yield from loaders.after_restore(process)
    yield from resumed(lives, moved, effects)


def _of_files(saved: Saved) -> Iterator[Finding]:
    for file in saved.needs_pickle:
        yield Finding(
            severity="note",
            what="a checkpoint needs pickle: reading it runs code",
            where=file.partition(":")[0],
            why="it holds objects of classes; torch.load refuses it with weights_only=True",
            fix="save tensors, numbers and words in mappings and lists",
            evidence=f"measured: {file.partition(': ')[2]}; it was not opened, and what was "
            "handed over at the save was compared instead",
        )
    if saved.unread:
        yield Finding(
            severity="note",
            what="files of a checkpoint were not read back",
            where=", ".join(saved.unread[:3]),
            why="their format holds pickle, or they went to a buffer",
            fix="",
            evidence="what was handed over at the save was compared instead",
        )


def _never_saved(first: Process, facts: Facts) -> Finding:
    matter = [spoken(stream) for stream in facts.moved if facts.effects.get(stream)]
    untold = [spoken(s) for s in facts.moved if facts.effects.get(s) is None and "/" in s]
    is_whole, steps = first["ended"] == "by itself", len(first["steps"])
    listed = ", ".join(matter) or "nothing that was tried"
    return Finding(
        severity="note" if is_whole else "outside of view",
        what="the program saved nothing" + ("" if is_whole else " in the time it was given"),
        where=f"{steps} step{'s' * (steps != 1)} and what followed",
        why=f"a checkpoint has to hold what step 2 changes with: {listed}",
        fix="pass the program's own option that saves after step 1 or 2" if not is_whole else "",
        evidence="measured by perturbing each stream that moves"
        + (f"; not told: {', '.join(untold[:6])}" if untold else ""),
    )


def _of_buckets(first: Process) -> Iterator[Finding]:
    kinds = {kind for _, kind in first["roots"]}
    if "DistributedDataParallel" in kinds and first["world"] >= REBUILDS:
        yield Finding(
            severity="missed by a checkpoint",
            what="DistributedDataParallel sums in other buckets in the first step of a process",
            where=f"{first['world']} processes",
            why="it rebuilds them after the first backward; a resumed process starts with the old",
            fix="find_unused_parameters=True, one forward and backward before loading, or FSDP2",
            evidence="source: with 4 processes on gloo 1316 of 50148 parameters differed after a "
            "resume; not measured in this run",
        )


def _of_notes(first: Process) -> Iterator[Finding]:
    for note in first["notes"]:
        yield Finding(
            severity="outside of view",
            what="a part of the program's state could not be read",
            where=note,
            why="streams that come after it were not looked at",
            fix="",
            evidence="seen in the first run",
        )


def _no_steps(base: Examined) -> Finding:
    return Finding(
        severity="outside of view",
        what="no process stepped an optimizer of torch after calling a module",
        where=f"exit status {base.exit}",
        why="steps are counted by optimizers and modules: streams of other programs are not seen",
        fix="pass the command that trains, as it is typed, without -I, -E or -S",
        evidence=base.last_words,
    )


def _summary(runs: Runs, first: Process) -> Finding:
    ranks = f", {first['world']} processes each" if first["world"] > 1 else ""
    return Finding(
        severity="note",
        what=f"streams: {runs.count} runs of the program were made{ranks}",
        why="two steps each; what acts later than that is not seen",
        fix="",
        evidence=f"{len(first['loaders'])} loaders, {len(moved_streams(first))} streams that move",
    )
