"""The judgement over the arms of a proof: what counts, what is equal, what was noticed.

1. An arm counts only if its last attempt wrote its end marker. One that goes on counts only if
   its first attempt was killed, and its last one began from a checkpoint.
2. A guarantee compares every row of every step, then the final state, byte by byte.
3. A control is caught if a stream other than the one left out differs later.

    certificate = judge(plan, recipe, run_arms(plan, said))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bitstep.checkpoint.compare import differing_tensors
from bitstep.contract.manifest import read_manifest
from bitstep.errors import BitstepError
from bitstep.investigate.arms import ArmReport, Plan
from bitstep.investigate.certificate import NOT_TRIED, Certificate, Finding
from bitstep.investigate.compare import (
    ArmRows,
    first_difference,
    merge,
    rows_of,
    streams_that_differ,
)
from bitstep.state.streams import STREAMS
from bitstep.trace.run import AttemptTrace, read_run
from bitstep.train.attempt import checkpoint_folder
from bitstep.train.recipe import Recipe

NEVER_SAVE = ("repeat", "resume-again")
"""Arms that by plan have no final checkpoint, and are compared by their rows alone."""
GOES_ON = ("resume", "resume-again", *(f"without-{stream}" for stream in STREAMS))
"""Arms that are about going on after a kill."""


def _has_experts(recipe: Recipe) -> bool:
    model = recipe.model
    return "E" in model.pattern or (model.mtp_depth > 0 and "E" in model.mtp_pattern)


# Reviewed: when leaving this stream out may change nothing, and why.
INERT: dict[str, tuple[Callable[[Recipe], bool], str]] = {
    "random": (
        lambda recipe: recipe.model.dropout == 0 and recipe.run.precision != "nvfp4",
        "nothing is drawn after the first step: model.dropout is 0, and nothing rounded by draws",
    ),
    "buffers": (
        lambda recipe: not _has_experts(recipe) or recipe.model.bias_rate == 0,
        "the only buffer is the expert bias, which this recipe never moves",
    ),
}


def judge(plan: Plan, recipe: Recipe, reports: tuple[ArmReport, ...]) -> Certificate:
    """The certificate of arms that were run. Raises nothing for an arm that does not count."""
    reader = _Judge(plan)
    reference = reader.arm("reference")
    return Certificate(
        recipe=plan.recipe,
        changes=plan.changes,
        steps=plan.steps,
        processes=plan.processes,
        logical_ranks=recipe.layout.logical_ranks,
        fault=plan.fault,
        killed_after=next((r.note for r in reports if r.name == "resume"), ""),
        final_root=_final_root(plan.run("reference")),
        rows_compared=len(reference.rows) if isinstance(reference, ArmRows) else 0,
        guarantees=_guarantees(plan, reader),
        controls=tuple(reader.control(stream, recipe) for stream in STREAMS),
        arms=reports,
        contract=_contract(plan.run("reference")),
    )


def _guarantees(plan: Plan, reader: _Judge) -> tuple[Finding, ...]:
    others = [plan.whole_arm(w) for w in plan.processes[1:]]
    repeats = reader.guarantee("repeatability", "reference", ["repeat"])
    same = plan.whole_arm(plan.resume_processes)
    if not others:
        resumes = reader.guarantee("exact resume", same, ["resume", "resume-again"])
        untried = Finding("layout freedom", (), NOT_TRIED, "one number of processes")
        return repeats, resumes, untried
    # What one number of processes saved, another one restored: that is layout, too.
    arms = [*others, *["whole-sums"] * (plan.whole_sums is not None), "resume-again"]
    layouts = reader.guarantee("layout freedom", "reference", arms)
    return repeats, reader.guarantee("exact resume", same, ["resume"]), layouts


class _Judge:
    """Reads each arm once and compares it with the one that it must equal."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._read: dict[str, ArmRows | str] = {}

    def arm(self, name: str) -> ArmRows | str:
        """The rows of an arm, or why it does not count."""
        if name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def _load(self, name: str) -> ArmRows | str:
        run = self._plan.run(name)
        try:
            attempts = read_run(run)
            last = attempts[-1]
            if last.status != "finished":
                return f"{name} did not finish (end marker: {last.status}): see {name}.log"
            if not last.trace.complete:
                return f"{name}: {last.damage[0]}"
            missing = _missing_processes(run, last.trace.processes)
            if missing:
                return f"{name}: no trace of process {missing[0]}: see {name}.log"
            untested = _never_went_on(run, attempts) if name in GOES_ON else None
            return f"{name}: {untested}" if untested else merge([rows_of(a) for a in attempts])
        except BitstepError as problem:
            return f"{name}: {problem}"

    def guarantee(self, name: str, expected: str, arms: Sequence[str]) -> Finding:
        """Every arm against the one that it must equal."""
        found = [self._compare(expected, arm) for arm in arms]
        for outcome in ("refuted", "unverified", "proven"):
            details = [detail for each, detail in found if each == outcome]
            if details:
                return Finding(name, (expected, *arms), outcome, details[0])
        raise AssertionError("a guarantee without arms")

    def _compare(self, expected: str, name: str) -> tuple[str, str]:
        whole, arm = self.arm(expected), self.arm(name)
        for each in (whole, arm):
            if isinstance(each, str):
                return "unverified", each
        assert isinstance(whole, ArmRows)
        assert isinstance(arm, ArmRows)
        difference = arm.conflict or first_difference(whole.rows, arm.rows)
        if difference is not None:
            return "refuted", f"{name}: {difference}"
        rows = f"{len(arm.rows)} rows of {self._plan.steps} steps"
        if name in NEVER_SAVE:
            return "proven", f"{rows} equal; {name} saves no final state"
        return self._compare_final_state(expected, name, rows)

    def _compare_final_state(self, expected: str, name: str, rows: str) -> tuple[str, str]:
        folders = [
            checkpoint_folder(self._plan.run(arm), self._plan.steps) for arm in (expected, name)
        ]
        for arm, folder in zip((expected, name), folders, strict=True):
            if not folder.exists():
                return "unverified", f"{arm}: its final checkpoint is missing: see {arm}.log"
        try:
            tensors = differing_tensors(*folders)
        except BitstepError as problem:
            return "unverified", f"{name}: {problem}"
        if tensors:
            return "refuted", f"{name}: final {tensors[0]} differs, and {len(tensors) - 1} more"
        return "proven", f"{rows} and the final state equal"

    def control(self, stream: str, recipe: Recipe) -> Finding:
        """The arm that restored without this stream: does another stream differ later?"""
        name = f"without-{stream}"
        finding = self._control(name, stream, recipe)
        return Finding(f"without {stream}", (name,), *finding)

    def _control(self, name: str, stream: str, recipe: Recipe) -> tuple[str, str]:
        reference, arm = self.arm("reference"), self.arm(name)
        for each in (reference, arm):
            if isinstance(each, str):
                return "missed", each
        assert isinstance(reference, ArmRows)
        last = rows_of(read_run(self._plan.run(name))[-1])
        others = [s for s in streams_that_differ(reference.rows, last) if s != stream]
        if others:
            return "caught", f"differs later: {', '.join(others)}"
        applies, reason = INERT.get(stream, (lambda _: False, ""))
        if applies(recipe):
            return "inert", reason
        return "missed", "no other stream differs, and it is not on the reviewed list"


def _never_went_on(run: Path, attempts: Sequence[AttemptTrace]) -> str | None:
    """Why an arm that is to go on after a kill says nothing about that, or None."""
    if attempts[0].status is not None:
        return f"its first attempt was not killed: it {attempts[0].status}"
    if read_manifest(run)[-1].parent is None:
        return "it did not go on from a checkpoint"
    return None


def _missing_processes(run: Path, recorded: Sequence[int]) -> list[int]:
    """Processes of the last attempt that left no trace: only the manifest knows of them."""
    keys = read_manifest(run)[-1].manifest.keys
    return sorted(set(range(keys["layout.physical.processes"])) - set(recorded))


def _final_root(run: Path) -> str:
    try:
        steps = read_run(run)[-1].trace.steps
    except BitstepError:
        return ""
    return f"{steps[max(steps)]:016x}" if steps else ""


def _contract(run: Path) -> dict[str, Any]:
    try:
        return dict(read_manifest(run)[0].manifest.keys)
    except BitstepError:
        return {}
