"""Findings about generators: who seeded them, and what of the bits depends on it.

A generator that starts the first forward in another state, when the machine's entropy is another,
was seeded by nobody. That matters where it is drawn from, and where bits then differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bitstep.investigate.doctor.finding import Finding
from bitstep.investigate.doctor.runs import Process

_SEED: Final = {
    "torch": "call torch.manual_seed(SEED) before the model is made",
    "python": "call random.seed(SEED) before anything is drawn",
    "numpy": "call numpy.random.seed(SEED) before anything is drawn, or use a generator of its own",
}
_FROM_MACHINE: Final = {"torch.seed", "random.seed", "numpy.random.seed"}


def unseeded(base: Process, shaken: Process, parts_at: str | None) -> Iterator[Finding]:
    """Generators that nobody seeded.

    Args:
        base: the program as it is.
        shaken: the same with other start-up entropy.
        parts_at: where bits part when that entropy alone is another; None: nowhere.
    """
    for name, state in base["generators"].get("first forward", {}).items():
        other = shaken["generators"].get("first forward", {}).get(name)
        if other is not None and other != state and (at := moved(base, name)):
            yield _unseeded(name, at, parts_at)
    for where in dict.fromkeys(base["unseeded"]):
        yield Finding(
            severity="varies" if parts_at else "note",
            what="numpy.random.default_rng() is made without a seed",
            where=where,
            why="it starts from the machine's entropy, in another state in every process",
            fix="pass a seed: numpy.random.default_rng(SEED)",
            evidence=_evidence(parts_at),
        )
    yield from _objects(base, shaken, parts_at)
    yield from _from_machine(base)


def moved(process: Process, name: str) -> str:
    """When the state of a generator moved: "before the first step", "in step 2" ...; "": never."""
    found = process["generators"]
    moments = list(found)
    for before, after in itertools.pairwise(moments):
        if found[before].get(name) not in (None, found[after].get(name)):
            is_step = after.startswith("step")
            return f"in {after}" if is_step else "before the first step"
    return ""


def _unseeded(name: str, at: str, parts_at: str | None) -> Finding:
    return Finding(
        severity="varies" if parts_at else "note",
        what=f"the generator of {name} is drawn from and nobody seeded it",
        where=f"first drawn from {at}",
        why="it starts from the machine's entropy, in another state in every process",
        fix=_SEED.get(name, f"seed {name}"),
        evidence=_evidence(parts_at),
    )


def _evidence(parts_at: str | None) -> str:
    if parts_at:
        return f"measured: two runs that start it in two states part at {parts_at}"
    return "measured: two runs that start it in two states have the same bits for two steps"


def _objects(base: Process, shaken: Process, parts_at: str | None) -> Iterator[Finding]:
    """Generators that hang on variables: another state at the same moment, and drawn from."""
    mine, theirs = base["inventory"].get("1", {}), shaken["inventory"].get("1", {})
    for stream, leaves in mine.items():
        kind, _, name = stream.partition("/")
        is_known = name in base["generators"].get("start", {})
        if kind != "random" or is_known or theirs.get(stream, leaves) == leaves:
            continue
        if base["unseeded"]:
            continue  # said with its line
        yield Finding(
            severity="varies" if parts_at else "note",
            what=f"the generator {name} is in another state in every run",
            where=name,
            why="it was made without a seed, or from one that the machine gave",
            fix="give it a seed when it is made",
            evidence=_evidence(parts_at),
        )


def _from_machine(base: Process) -> Iterator[Finding]:
    events: list[Mapping[str, Any]] = base["events"]
    for event in events:
        if event["call"] in _FROM_MACHINE and event["argument"] == "None" and event["where"]:
            yield Finding(
                severity="varies",
                what=f"{event['call']}() takes its seed from the machine",
                where=event["where"],
                why="without an argument it seeds from entropy that no run gets again",
                fix="pass a seed, and record it with the run",
                evidence="seen in the first run",
            )


def drawn_in_backward(base: Process) -> Iterator[Finding]:
    """Random numbers that backward draws: a forward that is computed again draws others."""
    for name in base["backward_drew"]:
        yield Finding(
            severity="under a setting",
            what=f"backward draws from the generator of {name}",
            where="torch.autograd.backward",
            why=(
                "a forward that is computed again in backward draws other numbers than the first "
                "(dropout masks), so that gradients belong to another loss; and bits depend on "
                "what is recomputed"
            ),
            fix=(
                "torch.utils.checkpoint.checkpoint(..., preserve_rng_state=True), or give dropout "
                "a generator of its own"
            ),
            evidence="measured: its state is another after backward than before",
        )
