"""Two runs -> where they part: load, place, follow each process, explain.

1. Manifests are compared first; the runs are compared whatever they say.
2. Lives are put on the same steps, every process that both recorded is followed to where it parts.
3. What was found is explained; what was not observed is listed beside it.
4. No difference counts as the same only if everything that could differ was seen.

    difference = compare_runs(Path("runs/a"), Path("runs/b"))
    difference.outcome, difference.causes[0].title
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bitstep.contract.classes import MUST
from bitstep.contract.manifest import NAME as MANIFEST
from bitstep.contract.manifest import Difference as KeyDifference
from bitstep.contract.manifest import compare
from bitstep.contract.placement import newest
from bitstep.diff import shown
from bitstep.diff.advice import hints
from bitstep.diff.coverage import (
    covered,
    missing_ranks,
    notes,
    other_layouts,
    why_unverified,
)
from bitstep.diff.difference import Cause, Covered, Difference, Placed
from bitstep.diff.explain import explain
from bitstep.diff.load import Run, load_run
from bitstep.diff.localise import Course, follow
from bitstep.diff.logical import compare_logical, layouts_of
from bitstep.diff.place import place
from bitstep.diff.rows import Codes
from bitstep.diff.slots import Slots
from bitstep.errors import ContractError
from bitstep.records import Outcome

logger = logging.getLogger("bitstep")

THOROUGH: Final = 20_000
"""Steps of processes, over both runs, up to which all bytes are read, equal ones too."""
_LISTENED: Final = 4
"""Processes whose metrics are looked at."""


def compare_runs(a: Path, b: Path, *, all_ranks: bool = False, strict: bool = False) -> Difference:
    """Where two recorded runs part, and why.

    Args:
        a: a run directory, which holds attempt-000.
        b: another.
        all_ranks: look at the metrics of every rank, and not of the first that differ.
        strict: read every byte, and take any gap for "could not tell".

    Raises RunError for a directory that is no run, TraceError for another format. Damage never
    raises, and is never a difference.
    """
    codes = Codes()
    slots = Slots(codes)
    runs = load_run(a, "a", codes), load_run(b, "b", codes)
    manifest, silent = _manifests(a, b)
    placed = place(*runs)
    if layouts := layouts_of(*runs):
        return _logical(a, b, runs, layouts, manifest, placed, silent)
    assumed = any(not one.known for one in placed)
    common = sorted(runs[0].processes & runs[1].processes) if not other_layouts(*runs) else []
    thorough = strict or _size(runs) <= THOROUGH
    courses = [follow(process, *runs, slots, thorough) for process in common]
    parted = assumed and any(run.all_damage() for run in runs)
    causes, receivers = ((), ()) if parted else explain(courses, *runs, slots)
    seen = _seen(common, causes, all_ranks)
    found = shown.metrics(seen, causes[0].where.step, *runs) if causes else shown.Search((), True)
    state = shown.state(common, *runs) if causes else None
    reasons = why_unverified(courses, *runs, placed, strict)
    reasons += tuple(f"{line} (--strict)" for line in silent if strict)
    outcome = Outcome.DIFFERENT if causes else Outcome.UNVERIFIED if reasons else Outcome.SAME
    said = [*silent, *notes(courses, *runs, thorough)]
    if causes and any(run.all_damage() for run in runs):
        said.insert(0, "what is damaged was not compared: an earlier difference may lie there")
    if causes and found.complete and not found.found and state is None:
        said.insert(0, "the difference never reaches the state or a metric, up to the end")
    if causes and not found.complete:
        said.append("the search for metrics that differ was ended before the end of the runs")
    return Difference(
        outcome, _title(outcome, causes, courses), str(a), str(b), manifest, placed, causes,
        receivers, found.found, state, covered(courses), tuple(said),
        tuple(line for run in runs for line in run.all_damage()),
        reasons if outcome is Outcome.UNVERIFIED else (),
        hints(causes, courses, reasons, manifest, placed),
    )  # fmt: skip


def _logical(
    a: Path, b: Path, runs: tuple[Run, Run], layouts: tuple[str, str],
    manifest: tuple[KeyDifference, ...], placed: tuple[Placed, ...], silent: Sequence[str],
) -> Difference:  # fmt: skip
    """Two runs in different layouts, compared by their logical states."""
    parted = compare_logical(*runs, layouts)
    damage = tuple(line for run in runs for line in run.all_damage())
    missing = tuple(missing_ranks(*runs, same_layout=False))
    reasons = [f"not all of it can be read: {line}" for line in damage[:1]] + list(missing)
    if not parted.equal and not parted.causes:
        reasons.append("nothing to pair: the runs have no logical roots of a step in common")
    outcome = Outcome.DIFFERENT if parted.causes and not missing else (
        Outcome.UNVERIFIED if reasons else Outcome.SAME)  # fmt: skip
    causes = parted.causes if outcome is Outcome.DIFFERENT else ()
    title = _title(outcome, causes, ())
    if outcome is Outcome.SAME:
        title = f"the same: {parted.equal} logical roots are equal, in two layouts"
    steps = (parted.steps[0], parted.steps[-1]) if parted.steps else None
    ranks = tuple(sorted(runs[0].processes | runs[1].processes))
    return Difference(
        outcome, title, str(a), str(b), manifest, placed, causes, (), (), None,
        Covered(ranks, steps, parted.equal, "step"), tuple(silent), damage,
        tuple(reasons) if outcome is Outcome.UNVERIFIED else (), (),
    )  # fmt: skip


def _title(outcome: Outcome, causes: Sequence[Cause], courses: Sequence[Course]) -> str:
    if outcome is Outcome.SAME:
        return f"the same: {sum(course.equal for course in courses)} records are equal"
    if outcome is Outcome.UNVERIFIED:
        return "could not tell"
    return f"different: {causes[0].kind.value}, step {causes[0].where.step}"


def _size(runs: Sequence[Run]) -> int:
    return sum(len(life.index.process(process).step) for run in runs for life in run.lives
               for process in life.index.processes)  # fmt: skip


def _seen(common: Sequence[int], causes: Sequence[Cause], all_ranks: bool) -> list[int]:
    """The processes whose metrics are looked at: those that parted first, then others."""
    first = [rank for cause in causes for rank in cause.ranks]
    ordered = list(dict.fromkeys([*first, *common]))
    return ordered if all_ranks else ordered[:_LISTENED]


def _manifests(a: Path, b: Path) -> tuple[tuple[KeyDifference, ...], list[str]]:
    """The keys that differ between the newest attempts, and which manifest is missing."""
    found, silent = [], []
    for name, run in (("A", a), ("B", b)):
        try:
            found.append(newest(run))
        except ContractError as error:
            why = "it cannot be trusted" if (run / MANIFEST).exists() else "it is missing"
            silent.append(f"settings were not compared: the manifest of {name}: {why}")
            logger.debug("%s", error)
    if len(found) < 2:
        return (), silent
    return compare(*found), silent


def must_match(difference: Difference) -> tuple[KeyDifference, ...]:
    """The keys of the manifests that must match and do not."""
    return tuple(one for one in difference.manifest if one.class_ == MUST)
