"""Prove the three guarantees of a recipe, with controls that must be caught.

1. `run_arms` runs every arm in fresh processes.
2. An arm counts only if its last attempt wrote its end marker.
3. Each guarantee compares arms with one that they must equal: every row of every step, then the
   final state, byte by byte.
4. Each control left one stream out of its restore: another stream must differ later.
5. The certificate says what was compared and what was found.

Refuted is an answer; unverified is the one that is given when an arm or a control failed to
answer, and it is never a pass.

>>> prove("nano", steps=20, processes=(1, 2), folder=Path("proof")).verdict.title  # doctest: +SKIP
'proven'
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bitstep.checkpoint.compare import differing_tensors
from bitstep.contract.manifest import read_manifest
from bitstep.errors import BitstepError, RunError, UsageError
from bitstep.faults import parse_fault
from bitstep.investigate.arms import ArmReport, Plan, Said, run_arms
from bitstep.investigate.compare import (
    ArmRows,
    first_difference,
    merge,
    rows_of,
    streams_that_differ,
)
from bitstep.records import Outcome, Verdict
from bitstep.state.streams import STREAMS
from bitstep.trace.run import read_run
from bitstep.train.attempt import checkpoint_folder
from bitstep.train.layout import Layout
from bitstep.train.recipe import Recipe, load

SHORTEST = 8
"""Fewest steps of a proof: the resume arm needs room to save, to die and to go on."""

# Reviewed: when leaving this stream out may change nothing, and why.
INERT: dict[str, tuple[Callable[[Recipe], bool], str]] = {
    "random": (
        lambda recipe: recipe.model.dropout == 0,
        "nothing is drawn after the first step: model.dropout is 0",
    ),
    "buffers": (
        lambda recipe: "E" not in recipe.model.pattern or recipe.model.bias_rate == 0,
        "the only buffer is the expert bias, which this recipe never moves",
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One guarantee or control, and what became of it."""

    name: str
    arms: tuple[str, ...]
    outcome: str
    """proven, refuted or unverified; of a control caught, inert or missed."""
    detail: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was run, what was compared, and what was found."""

    recipe: str
    changes: tuple[str, ...]
    steps: int
    processes: tuple[int, ...]
    logical_ranks: int
    fault: str | None
    killed_after: str
    final_root: str
    rows_compared: int
    guarantees: tuple[Finding, ...]
    controls: tuple[Finding, ...]
    arms: tuple[ArmReport, ...]
    contract: dict[str, Any]
    """Keys of the reference's manifest: what the guarantees hold for."""

    @property
    def verdict(self) -> Verdict:
        """Refuted before unverified before proven."""
        broken = [f.name for f in self.guarantees if f.outcome == "refuted"]
        if broken:
            return Verdict(Outcome.DIFFERENT, "refuted", tuple(broken))
        doubtful = [f.name for f in self.guarantees if f.outcome != "proven"]
        doubtful += [f.name for f in self.controls if f.outcome not in ("caught", "inert")]
        if doubtful:
            return Verdict(Outcome.UNVERIFIED, "unverified", tuple(doubtful))
        return Verdict(Outcome.SAME, "proven")

    def to_json(self) -> str:
        """The text of certificate.json."""
        value = {"format": 1, "verdict": self.verdict.title, **asdict(self)}
        return json.dumps(value, indent=2) + "\n"


def prove(
    recipe: str,
    *,
    processes: Sequence[int] = (1, 2, 4),
    steps: int = 24,
    folder: Path,
    changes: Sequence[str] = (),
    fault: str | None = None,
    said: Said = lambda report: None,
) -> Certificate:
    """Run the arms in `folder`, judge them, and leave certificate.json there.

    Raises UsageError, RecipeError or LayoutError before anything is run, and RunError if the
    folder is not empty.
    """
    plan, loaded = _plan(recipe, processes, steps, folder, changes, fault)
    folder.mkdir(parents=True, exist_ok=True)
    reports = run_arms(plan, said)
    certificate = _judge(plan, loaded, reports)
    (folder / "certificate.json").write_text(certificate.to_json())
    return certificate


def _plan(
    recipe: str,
    processes: Sequence[int],
    steps: int,
    folder: Path,
    changes: Sequence[str],
    fault: str | None,
) -> tuple[Plan, Recipe]:
    loaded = load(recipe, [*changes, f"run.steps={steps}"])
    if steps < SHORTEST:
        raise UsageError(f"--steps {steps}: a proof takes at least {SHORTEST} steps")
    for count in processes:
        Layout(loaded.layout.fan_ins, count, process=0, local_processes=count)
    if fault is not None:
        parse_fault(fault)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} is not empty: choose another directory with -o")
    return (
        Plan(
            recipe=recipe,
            changes=tuple(changes),
            steps=steps,
            processes=tuple(dict.fromkeys(processes)),
            threads=loaded.layout.threads,
            seed=loaded.run.seed,
            folder=folder,
            fault=fault,
        ),
        loaded,
    )


def _judge(plan: Plan, recipe: Recipe, reports: tuple[ArmReport, ...]) -> Certificate:
    judge = _Judge(plan)
    layouts = [plan.whole_arm(w) for w in plan.processes[1:]]
    guarantees = [
        judge.guarantee("repeatability", "reference", ["repeat"]),
        judge.guarantee("exact resume", plan.whole_arm(plan.resume_processes), ["resume"]),
    ]
    if layouts:
        # What one number of processes saved, another one restored: that is layout, too.
        arms = [*layouts, "resume-again"]
        guarantees.append(judge.guarantee("layout freedom", "reference", arms))
    reference = judge.arm("reference")
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
        guarantees=tuple(guarantees),
        controls=tuple(judge.control(stream, recipe) for stream in STREAMS),
        arms=reports,
        contract=_contract(plan.run("reference")),
    )


class _Judge:
    """Reads each arm once and compares it with the reference."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._read: dict[str, ArmRows | str] = {}

    def arm(self, name: str) -> ArmRows | str:
        """The rows of an arm, or why it does not count."""
        if name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def _load(self, name: str) -> ArmRows | str:
        try:
            attempts = read_run(self._plan.run(name))
            if attempts[-1].status != "finished":
                return f"{name} did not finish (end marker: {attempts[-1].status}): see {name}.log"
            if not attempts[-1].trace.complete:
                return f"{name}: {attempts[-1].damage[0]}"
            missing = _missing_processes(self._plan.run(name), attempts[-1].trace.processes)
            if missing:
                return f"{name}: no trace of process {missing[0]}: see {name}.log"
            return merge([rows_of(attempt) for attempt in attempts])
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
        return self._compare_final_state(expected, name, len(arm.rows))

    def _compare_final_state(self, expected: str, name: str, rows: int) -> tuple[str, str]:
        mine = checkpoint_folder(self._plan.run(name), self._plan.steps)
        if not mine.exists():
            return "proven", f"{rows} rows of {self._plan.steps} steps equal"
        try:
            theirs = checkpoint_folder(self._plan.run(expected), self._plan.steps)
            tensors = differing_tensors(theirs, mine)
        except BitstepError as problem:
            return "unverified", f"{name}: {problem}"
        if tensors:
            return "refuted", f"{name}: final {tensors[0]} differs, and {len(tensors) - 1} more"
        return "proven", f"{rows} rows of {self._plan.steps} steps and the final state equal"

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
