"""What `bitstep check` shows: a first screen of 24 lines, all of it as data, a line as it comes.

1. `check_text` gives the title, the first findings and why, what was compared, what was not, and
   what to do next.
2. `check_json` is all of it as data; docs/check.md is its contract.
3. `finding_line` and `finding_json` are what `--follow` prints when something is found.

    different: 1 finding, in step 8
    replicas   Net.weight (param) on rank 2 differs from ranks 0 and 1 since step 8
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from bitstep.check import Checked, Finding, ranks_text
from bitstep.errors import printable

FORMAT: Final = 1
"""Version of the JSON."""
LINES: Final = 24
WIDTH: Final = 100
_LABEL: Final = 11
_COUNTED: Final = {
    "replicas": "readings of replicas",
    "collectives": "results of collectives",
    "gathered": "gathered tensors",
    "recomputed": "records of recomputation",
    "writes": "readings against the last write",
    "expected": "records against the expected run",
}
_MEANS: Final = (
    "Agreement is not correctness: ranks that agree can all be wrong, and so can a repetition."
)


def check_text(checked: Checked) -> str:
    """The first screen. No line end at the end."""
    foot = list(_foot(checked))
    room = LINES - 1 - len(foot)
    body: list[str] = []
    for at, finding in enumerate(checked.findings):
        lines = list(_finding(finding))
        left = len(checked.findings) - at
        if body and len(body) + len(lines) + (left > 1) > room:
            body.append(f"and {left} more findings (--json)")
            break
        body += lines
    for reason in checked.reasons[:3]:
        body += _labelled("because", reason, 2)
    return "\n".join([printable(checked.title), *body[:room], *foot])


def check_json(checked: Checked) -> dict[str, Any]:
    """All of it; docs/check.md says what each key holds."""
    found = asdict(checked)
    found.pop("findings")
    return {
        "format": FORMAT,
        **found,
        "outcome": checked.outcome.name.lower(),
        "status": int(checked.outcome),
        "findings": [finding_json(finding) for finding in checked.findings],
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """One finding; `--follow --json` prints them one a line."""
    return asdict(finding)


def finding_line(finding: Finding) -> str:
    """One finding as a line."""
    return printable(f"{finding.kind}: {finding.title}")


def _finding(finding: Finding) -> Iterator[str]:
    yield from _labelled(str(finding.kind), finding.title, 2)
    for sentence in finding.because[:3]:
        yield from _labelled("", sentence, 2)
    if finding.also:
        more = len(finding.also) - 3
        words = ", ".join(finding.also[:3]) + (f" and {more} more" if more > 0 else "")
        yield from _labelled("", f"Also: {words}.", 1)
    yield from _labelled("", f"How sure: {finding.sure}.", 2)


def _foot(checked: Checked) -> Iterator[str]:
    steps = f"steps {checked.steps[0]} to {checked.steps[1]}" if checked.steps else "no step"
    ranks = ranks_text(checked.ranks) if checked.ranks else "no rank"
    counts = [f"{n} {_COUNTED[name]}" for name, n in asdict(checked.compared).items() if n]
    yield from _labelled("compared", f"{steps}, {ranks}: {', '.join(counts) or 'nothing'}", 2)
    for at, note in enumerate(checked.notes[:3]):
        yield from _labelled("" if at else "not seen", note, 2 if at == 0 else 1)
    for line in checked.damage[:1]:
        yield from _labelled("damage", line, 1)
    yield from _labelled("means", _MEANS, 2)
    for hint in checked.hints[:1]:
        yield from _labelled("next", hint, 2)


def _labelled(label: str, text: str, most: int) -> list[str]:
    """A text behind its label, in `most` lines."""
    lines = textwrap.wrap(printable(text), WIDTH - _LABEL, break_on_hyphens=False) or [""]
    if len(lines) > most:
        last = " ".join(lines[most - 1 :])
        lines = [*lines[: most - 1], last[: WIDTH - _LABEL - 3] + "..."]
    return [f"{label if not at else '':{_LABEL}}{line}".rstrip() for at, line in enumerate(lines)]
