"""From what the checks of all lives showed to one answer.

1. A finding is a difference, whatever else could not be read.
2. Without one, damage, ranks that are missing, gaps, or nothing to compare with: unverified.
3. Notes say what was not compared; agreement is not correctness, and the title does not claim it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Final

from bitstep.check.expected import Expected
from bitstep.check.finding import Checked, Compared, Finding, Kind, ranks_text
from bitstep.check.life import LifeChecks
from bitstep.diff.load import Run
from bitstep.records import Outcome

NOTHING: Final = (
    "there is nothing to check against itself: no tensor that several ranks hold in common, no "
    "collective and no recomputation was recorded"
)
_NAMED: Final = 3


def summarise(
    run: Run, expect: Path | None, lives: Mapping[int, LifeChecks], expected: Expected | None
) -> Checked:
    """The answer about a run, after its last step was read."""
    checks = [lives[number] for number in sorted(lives)]
    findings = sorted((f for c in checks for f in c.findings), key=lambda f: (f.step, f.attempt))
    compared = _total([c.compared for c in checks], expected)
    damage = tuple(run.all_damage())
    reasons = [*_reasons(run, checks, compared, expected), *_damaged(damage)]
    outcome = Outcome.DIFFERENT if findings else Outcome.UNVERIFIED if reasons else Outcome.SAME
    # Step 0 is what was before the first step.
    steps = [step for c in checks for step in c.steps if step] or [0] * any(c.steps for c in checks)
    return Checked(
        outcome=outcome,
        title=_title(outcome, findings),
        run=str(run.path),
        expected=str(expect) if expect else None,
        findings=tuple(findings),
        compared=compared,
        ranks=tuple(sorted({rank for c in checks for rank in c.ranks})),
        steps=(min(steps), max(steps)) if steps else None,
        notes=tuple(_notes(checks, compared, expected)),
        damage=damage,
        reasons=tuple(reasons) if outcome == Outcome.UNVERIFIED else (),
        hints=tuple(_hints(run, expect, findings, compared)),
    )


def _total(parts: Iterable[Compared], expected: Expected | None) -> Compared:
    parts = list(parts)
    sums = {f.name: sum(getattr(part, f.name) for part in parts) for f in fields(Compared)}
    return Compared(**{**sums, "expected": expected.compared if expected else 0})


def _title(outcome: Outcome, findings: list[Finding]) -> str:
    if outcome == Outcome.DIFFERENT:
        count = f"{len(findings)} findings, the first" if len(findings) > 1 else "1 finding,"
        return f"different: {count} in step {findings[0].step}"
    if outcome == Outcome.UNVERIFIED:
        return "could not tell: nothing that was compared differs"
    return "nothing found: all that was compared agrees"


def _reasons(
    run: Run, checks: list[LifeChecks], compared: Compared, expected: Expected | None
) -> Iterator[str]:
    if not (compared.replicas or compared.collectives or compared.recomputed or compared.gathered
            or compared.expected):  # fmt: skip
        yield NOTHING
    if expected and not compared.expected:
        yield "no step of the run is in the expected one"
    for found in checks:
        recorded = {p for life in run.lives if life.number == found.number
                    for p in life.index.processes}  # fmt: skip
        missing = tuple(sorted(set(range(found.world)) - recorded))
        if missing:
            yield f"attempt {found.number}: {ranks_text(missing)} of {found.world} recorded nothing"
        if found.broken_off:
            yield (
                f"attempt {found.number}: {found.broken_off} results of collectives differ in the "
                "last step, and may not have arrived when the program ended"
            )
        if found.gaps:
            yield f"attempt {found.number}: recording has gaps, first in step {min(found.gaps)}"


def _damaged(damage: tuple[str, ...]) -> Iterator[str]:
    if damage:
        yield f"the recording is not whole: {damage[0]}"


def _notes(
    checks: list[LifeChecks], compared: Compared, expected: Expected | None
) -> Iterator[str]:
    unproven = sorted({name for c in checks for name in c.replicas.unproven})
    if unproven:
        yield (
            f"{_names(unproven)}: equal on all ranks at the start and never again, so not taken "
            "for replicas; experts look like this, and so does a gradient that is never reduced"
        )
    unpaired = sum(c.unpaired for c in checks)
    if unpaired:
        yield f"{unpaired} modules were recomputed in another order, and not compared"
    if len({rank for c in checks for rank in c.ranks}) > 1 and not compared.replicas:
        yield "no tensor was seen to be the same on several ranks: nothing is known of replicas"
    if not compared.recomputed:
        yield "no recomputation was recorded"
    if not compared.collectives:
        yield "no collective was recorded"
    later = sum(c.replicas.later for c in checks)
    if later:
        yield f"replicas: {later} more readings differ after the first of each tensor"
    for kind in Kind:
        again = sum(c.again.get(kind, 0) for c in checks)
        if again:
            yield f"{kind}: {again} more after the first of each"
    if expected and expected.missing:
        yield (
            f"{len(expected.missing)} steps are not in the expected run, first step "
            f"{min(expected.missing)}"
        )


def _names(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _hints(
    run: Run, expect: Path | None, findings: list[Finding], compared: Compared
) -> Iterator[str]:
    if any(found.kind == Kind.EXPECTED for found in findings):
        yield f"bitstep diff {expect} {run.path}"
    elif findings:
        first = findings[0].step
        yield (
            f"bitstep record --level op --steps {max(first - 1, 1)}:{first + 2} -- COMMAND, then "
            "check that: the same again is the program, something else perhaps the machine"
        )
    elif not compared.replicas and not compared.recomputed:
        yield f"bitstep diff {run.path} OTHER, to compare it with a second run"
