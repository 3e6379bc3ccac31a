"""The runs that an examination makes of a program, and where two of them part.

1. `base` is the program as it is; it may go on after step 2 until it saves.
2. `shaken` differs from it in all that should not matter at once: the entropy that the machine
   would seed generators with, string hashing, the number of workers of each loader.
3. Only if those two differ there is a run for each of these, and one that differs in nothing.

>>> first_difference(base, base) is None  # doctest: +SKIP
True
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bitstep.launch.examined import Examined, run_examined
from bitstep.observe.examine import Order

Process = Mapping[str, Any]

SAVE_WAIT: Final = 20.0
"""Seconds that the program may take from the end of step 2 until it saves."""
ENTROPY: Final = 20_25
"""Takes the place of the machine's in a run that is shaken."""
HASHING: Final = "PYTHONHASHSEED"
FIXED, SHAKEN = "0", "1"
"""Values of PYTHONHASHSEED."""


@dataclass
class Runs:
    """Runs the program, and counts how often."""

    command: Sequence[str]
    folder: Path
    count: int = 0
    went_on: bool = False
    """Whether a later run loaded what the base had saved."""
    saved: set[str] = field(default_factory=set)

    def base(self) -> Examined:
        """As it is."""
        base = self._run(Order(folder=self.folder / "base", save_wait=SAVE_WAIT))
        self.saved = {e["path"] for p in base.processes for e in p["saves"] if e["path"]}
        return base

    def shaken(self) -> Examined:
        """Everything is other that should not matter."""
        order = Order(folder=self.folder / "shaken", entropy=ENTROPY, workers="other", mute=True)
        return self._run(order, SHAKEN)

    def again(self) -> Examined:
        """As the base, once more."""
        return self._run(Order(folder=self.folder / "again", mute=True))

    def entropy(self) -> Examined:
        """Other start-up entropy."""
        order = Order(folder=self.folder / "entropy", entropy=ENTROPY, mute=True)
        return self._run(order)

    def hashing(self) -> Examined:
        """Other string hashing."""
        return self._run(Order(folder=self.folder / "hashing", mute=True), SHAKEN)

    def workers(self) -> Examined:
        """Another number of workers."""
        order = Order(folder=self.folder / "workers", workers="other", mute=True)
        return self._run(order)

    def forked(self, streams: Sequence[str], updates: int) -> Examined:
        """A child for each stream, which is perturbed in it."""
        order = Order(
            folder=self.folder / "perturbed",
            workers="none",
            mute=True,
            streams=tuple(streams),
            updates=updates,
        )
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        return self._run(order, changes=threads)

    def perturbed(self, number: int, stream: str, updates: int) -> Examined:
        """One stream is perturbed, in every process."""
        folder = self.folder / f"perturbed-{number:02d}"
        return self._run(Order(folder=folder, mute=True, perturb=stream, updates=updates))

    def resume(self, base: Examined) -> Examined:
        """Once more where the base has saved: it may go on from there."""
        order = Order(folder=self.folder / "resume", mute=True)
        return self._run(order, SHAKEN, place=base.folder / "work")

    def _run(
        self,
        order: Order,
        hashing: str = FIXED,
        changes: Mapping[str, str] | None = None,
        place: Path | None = None,
    ) -> Examined:
        self.count += 1
        variables = {HASHING: hashing, **(changes or {})}
        # What counts in these is the first training of a command that trains several times.
        is_short = order.mute and place is None
        found = run_examined(self.command, order, variables, place=place, ends_with_first=is_short)
        first = attempts(found)[:1]
        loads = {e["path"] for ranks in first for p in ranks.values() for e in p["loads"]}
        self.went_on = self.went_on or (place is None and bool(loads & self.saved))
        return found


def attempts(run: Examined) -> list[dict[int, Process]]:
    """Rank to process, for each time that the command trained: one may start itself anew."""
    found: list[dict[int, Process]] = []
    for process in run.processes:
        rank = process["rank"]
        free = next((ranks for ranks in found if rank not in ranks), None)
        if free is None:
            found.append(free := {})
        free[rank] = process
    return found


def first_difference(left: Examined, right: Examined) -> str | None:
    """Where the first two steps of two runs part, in words; None: nowhere."""
    one, other = attempts(left), attempts(right)
    if not one or not other:
        return None if not one and not other else "one of them did not train"
    for rank, process in sorted(one[0].items()):
        of = f" on rank {rank}" if process["world"] > 1 else ""
        if rank not in other[0]:
            return f"rank {rank} did not train"
        found = _parted(process, other[0][rank])
        if found:
            return found + of
    return None


def _parted(one: Process, other: Process) -> str | None:
    if _initial(one) != _initial(other):
        return "the initial parameters"
    batches = differing_batches(one, other)
    if batches:
        name, at = batches[0]
        return f"batch {at} of the loader at {name}"
    if one["order"] != other["order"]:
        return "the order of the optimizer's parameters"
    for left, right in zip(one["steps"], other["steps"], strict=False):
        for what in ("losses", "gradients", "parameters"):
            if left[what] != right[what]:
                return f"the {what} of step {left['step']}"
    return None if len(one["steps"]) == len(other["steps"]) else "the number of steps"


def _initial(process: Process) -> list[Any]:
    return sorted(process["inventory"].get("0", {}).get("parameters", []))


def differing_batches(one: Process, other: Process) -> list[tuple[str, int]]:
    """Loaders whose batches differ, with the number of the first that does, from 1."""
    theirs = {loader["name"]: loader["batches"] for loader in other["loaders"]}
    found = []
    for loader in one["loaders"]:
        pairs = zip(loader["batches"], theirs.get(loader["name"], ()), strict=False)
        at = next((n for n, (left, right) in enumerate(pairs, 1) if left != right), None)
        if at is not None:
            found.append((loader["name"], at))
    return found


def given_hashing() -> str | None:
    """PYTHONHASHSEED of this environment, where it fixes anything."""
    value = os.environ.get(HASHING)
    return None if value in (None, "", "random") else value
