"""Findings about what should not matter: start-up entropy, string hashing, workers.

1. One run with all three changed at once. Where its bits are the same, none of them matters.
2. Else the program runs once more as it was, and once for each of the three.

    findings = list(of_settings(runs, base, process))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bitstep.investigate.doctor import generators, loaders
from bitstep.investigate.doctor.finding import Finding
from bitstep.investigate.doctor.runs import (
    HASHING,
    Process,
    Runs,
    attempts,
    differing_batches,
    first_difference,
    given_hashing,
)
from bitstep.launch.examined import PLACE, Examined


def of_settings(runs: Runs, base: Examined, first: Process) -> Iterator[Finding]:
    """What of the bits follows entropy, hashing and workers."""
    shaken = runs.shaken()
    lives = attempts(shaken)
    if not lives or first["rank"] not in lives[0]:
        yield _failed("with other entropy, hashing and workers", shaken)
        return
    other = lives[0][first["rank"]]
    if runs.went_on:
        yield _went_on()
        return
    parts = first_difference(base, shaken)
    if parts is None:
        yield from generators.unseeded(first, other, None)
        return
    by_itself = first_difference(base, runs.again())
    if by_itself is not None:
        yield from generators.unseeded(first, other, by_itself)
        yield Finding(
            severity="differs",
            what=f"two equal runs differ in {by_itself}",
            why="with entropy, hashing and workers as they were, nothing that we set was another",
            fix="make it repeat first; then what its bits follow can be told",
            evidence="measured: two runs of the same command",
        )
        return
    by_entropy = first_difference(base, entropy := runs.entropy())
    ends = attempts(entropy)
    other = ends[0].get(first["rank"], other) if ends else other
    found = list(generators.unseeded(first, other, by_entropy))
    yield from found
    if by_entropy and not any(f.severity == "varies" for f in found):
        yield _of_entropy(by_entropy)
    yield from of_hashing(runs, base, first)
    if first["loaders"]:
        workers = runs.workers()
        by_workers, lives = first_difference(base, workers), attempts(workers)
        if by_workers and lives and first["rank"] in lives[0]:
            batches = differing_batches(first, lives[0][first["rank"]])
            yield from loaders.of_workers(first, batches, by_workers)


def _of_entropy(parts: str) -> Finding:
    return Finding(
        severity="varies",
        what="bits follow what the machine seeds generators with",
        where=parts,
        why="something that decides bits was not seeded, or was seeded too late",
        fix="seed random, numpy and torch first thing, before anything is imported that draws",
        evidence=f"measured: runs with two start-up entropies part at {parts}",
    )


def of_hashing(runs: Runs, base: Examined, first: Process) -> Iterator[Finding]:
    hashing = runs.hashing()
    parts, given = first_difference(base, hashing), given_hashing()
    if parts is None:
        return
    lives = attempts(hashing)
    is_order = bool(lives) and first["order"] != lives[0].get(first["rank"], first)["order"]
    yield Finding(
        severity="varies" if given is None else "under a setting",
        what=(
            "the order of the optimizer's parameters follows string hashing"
            if is_order
            else "bits follow string hashing: a set or hash() decides something"
        ),
        where=_orders(first["order"], lives[0][first["rank"]]["order"]) if is_order else parts,
        why=(
            "it differs in every process, and an optimizer's state_dict goes by position: a "
            "resumed process loads moments into other parameters"
            if is_order
            else "Python salts the hash of a string anew in every process"
        ),
        fix=f"iterate over sorted(...) and not over a set; {HASHING}=0 hides it",
        evidence=f"measured: {HASHING} 0 and 1 part at {parts}"
        + (f"; it is {given} in this environment" if given is not None else ""),
    )


def _orders(one: Sequence[Sequence[str]], other: Sequence[Sequence[str]]) -> str:
    for left, right in zip(one, other, strict=False):
        for at, (a, b) in enumerate(zip(left, right, strict=False)):
            if a != b:
                return f"parameter {at}: {a} or {b}"
    return ""


def _failed(how: str, run: Examined) -> Finding:
    return Finding(
        severity="unknown",
        what=f"the program did not train {how}",
        where=f"exit status {run.exit}",
        why="whether its bits follow these could not be told",
        fix="see why: -o DIR keeps its log",
        evidence=run.last_words,
    )


def _went_on() -> Finding:
    return Finding(
        severity="outside of view",
        what="the program went on from the checkpoint that its first run saved",
        why="runs that start from other states cannot be compared",
        fix=f"have it save into {PLACE}, which is a new folder for each run",
    )
