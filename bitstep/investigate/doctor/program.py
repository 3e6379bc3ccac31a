"""Examine the first two steps of a program: what varies, what could, and what to do.

1. The command runs twice, recorded at level `op`, each time to the end of its second step; the
   recordings are compared.
2. Every operation that ran is looked up in the catalog, under the settings that this program held.
3. Lints look at what undoes settings that look right; `streams` at loaders, seeds and
   checkpoints.

    diagnosis = examine_program(["python", "train.py"], Path("look"))
    diagnosis.findings[0].what, diagnosis.outcome
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bitstep.diff import compare_runs
from bitstep.diff.difference import Difference
from bitstep.errors import RunError, TraceError
from bitstep.investigate.doctor.calls import read_calls
from bitstep.investigate.doctor.conditions import Circumstances
from bitstep.investigate.doctor.diagnosis import Diagnosis
from bitstep.investigate.doctor.finding import Finding, ranked
from bitstep.investigate.doctor.lints import lint_findings
from bitstep.investigate.doctor.machine import broken_rules, unset_rules
from bitstep.investigate.doctor.operations import (
    Setup,
    classed,
    held_settings,
    operation_findings,
)
from bitstep.investigate.doctor.recordings import (
    check_findings,
    difference_findings,
    outside_findings,
)
from bitstep.investigate.doctor.streams import examine_streams
from bitstep.launch.examined import last_words
from bitstep.launch.first_steps import FirstSteps, run_first_steps
from bitstep.records import Outcome

STEPS: Final = 2
TIMEOUT: Final = 600.0
"""Seconds for each execution."""


def examine_program(command: Sequence[str], folder: Path, *, timeout: float = TIMEOUT) -> Diagnosis:
    """The first two steps of a program, run twice in `folder`, which must be new or empty.

    Args:
        command: the program; "{run}" in a word is a folder of each execution.
        folder: gets `first`, `second` and `streams`.
        timeout: seconds for each execution.

    Raises UsageError for a command that cannot be found, RunError for a folder that is not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty: name another directory with -o")
    first = run_first_steps(command, folder / "first", steps=STEPS, timeout=timeout)
    findings = list(_trouble(first))
    try:
        calls = read_calls(first.run)
    except (RunError, TraceError) as error:
        if not findings:  # Else they say why.
            findings.append(
                _untold("nothing could be read of what was recorded", str(error), "", "")
            )
        return Diagnosis(tuple(command), ranked(findings), executions=(first,))
    setup = setup_of(first)
    operations = tuple(classed(calls.ran[op], setup) for op in sorted(calls.ran))
    findings += [
        *check_findings(first.run),
        *outside_findings(calls),
        *operation_findings(operations, setup),
        *lint_findings(first.notes, frozenset(calls.dtypes)),
        *_rules(first),
    ]
    if first.exit or first.timed_out:  # So would the others.
        return Diagnosis(tuple(command), ranked(findings), operations=operations,
                         executions=(first,))  # fmt: skip
    second = run_first_steps(command, folder / "second", steps=STEPS, timeout=timeout)
    difference = _compare(first, second)
    findings += _of_second(second, first)
    findings += _of_difference(difference, setup)
    findings += examine_streams(command, folder / "streams")
    return Diagnosis(
        tuple(command),
        ranked(findings),
        operations=operations,
        executions=(first, second),
        compared=_compared(difference),
    )


def setup_of(first: FirstSteps) -> Setup:
    """What the program ran under: on the rank with the most threads."""
    ends = [note["flags"]["end"] for note in first.notes]
    here = Circumstances(
        device="cuda" if any(note["device"] == "cuda" for note in first.notes) else "cpu",
        threads=max((flags["threads"] for flags in ends), default=1),
        unaligned=any(note["unaligned"] for note in first.notes),
    )
    return Setup(here, held_settings(first.notes))


def _rules(first: FirstSteps) -> Iterator[Finding]:
    """The rules as they stood in the program at its end, on its first rank. Which of those that
    nobody set matter here, the operations say."""
    rules = first.notes[0]["rules"] if first.notes else []
    yield from broken_rules(rules)
    has_gpu = any(note["device"] == "cuda" for note in first.notes)
    yield from unset_rules(rules, "variable", "note", has_gpu)
    yield from unset_rules(rules, "torch", "note", has_gpu)


def _of_difference(difference: Difference | None, setup: Setup) -> Iterator[Finding]:
    if difference is None:
        yield _untold("whether two executions have the same bits", "the second left no recording",
                      "", "run it twice by hand, and see why")  # fmt: skip
    else:
        yield from difference_findings(difference, setup.here.device)


def _compare(first: FirstSteps, second: FirstSteps) -> Difference | None:
    """The two recordings, compared; None where the second has nothing to compare."""
    try:
        return compare_runs(first.run, second.run)
    except (RunError, TraceError):
        return None


def _compared(difference: Difference | None) -> str:
    if difference is None:
        return ""
    covered = difference.covered
    ranks = f"{len(covered.ranks)} rank{'s' * (len(covered.ranks) != 1)}"
    last = covered.steps[1] if covered.steps else 0
    steps = f"{last} step{'s' * (last != 1)}"
    ends = {
        Outcome.SAME: "the same bits",
        Outcome.DIFFERENT: "other bits",
        Outcome.UNVERIFIED: "could not tell",
    }
    return f"two executions of {steps} on {ranks}: {ends[difference.outcome]}"


def _trouble(one: FirstSteps) -> Iterator[Finding]:
    """Why an execution did not come to the end of its second step on all ranks."""
    said = last_words(one.last_lines)
    for line in one.complaints:
        yield _untold("the recorder did not follow the program", line, said, "see why")
    if one.timed_out:
        yield _untold("the program took too long", f"it ran {one.seconds:.0f} s", said,
                      "give it more time with --timeout")  # fmt: skip
    elif one.exit:
        yield _untold(f"the program ended with status {one.exit}", "it failed before its second "
                      "step was over", said, "run it alone, and see why")  # fmt: skip
    elif not one.notes and not one.complaints:
        yield _untold("no process of the program trained", "nothing stepped an optimizer or "
                      "called backward in a Python with torch", said,
                      "give the command that trains")  # fmt: skip
    elif one.exit == 0:
        yield Finding(
            severity="note", what=f"the program ended before step {STEPS + 1}",
            why="what comes later was not seen", fix="", evidence="its exit status is 0",
        )  # fmt: skip
    missing = sorted(set(range(one.world)) - set(one.stopped)) if one.exit is None else []
    if missing and not one.timed_out:
        yield _untold(f"ranks {', '.join(map(str, missing))} did not end step {STEPS}",
                      f"{one.world} ranks train, and others waited for them", said, "")  # fmt: skip


def _untold(what: str, why: str, said: str, fix: str) -> Finding:
    evidence = f"stderr: {said}" if said else ""
    return Finding(severity="unknown", what=what, why=why, fix=fix, evidence=evidence)


def _of_second(second: FirstSteps, first: FirstSteps) -> Iterator[Finding]:
    """The second execution should have ended as the first did."""
    if (second.exit, second.timed_out, second.world) != (first.exit, first.timed_out, first.world):
        yield _untold(
            f"a second execution ended otherwise: {_ended(second)}, the first: {_ended(first)}",
            "a program may refuse to run twice into the same folder",
            last_words(second.last_lines),
            'put "{run}" into the command for a folder of each execution',
        )


def _ended(one: FirstSteps) -> str:
    if one.timed_out:
        return "it took too long"
    if one.exit is None:
        return f"stopped on {len(one.stopped)} of {one.world} ranks"
    return f"status {one.exit}"
