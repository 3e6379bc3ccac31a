"""What `bitstep doctor` shows: a first screen of 24 lines, or all of it.

1. The title; then the findings, the worst first, each with where, why and what to do.
2. What holds: how many operations repeat, what two executions showed, what the machine is.
3. With `full` every finding, every operation with its class, every rule with its standing.

    different: 1 finding that can change bits
    varies     aten.index_put_ has other bits each time
               fix: set torch.use_deterministic_algorithms(True)
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from bitstep.errors import printable

LINES: Final = 24
WIDTH: Final = 100
_LABEL: Final = 11
_LABELS: Final = {
    "missed by a checkpoint": "missed",
    "outside of view": "not seen",
    "under a setting": "held",
}
_ALL: Final = 100
_LENGTHS: Final = ((4, 3), (4, 1), (3, 1), (2, 1), (1, 1))
"""How long findings may be, the serious and the mild ones: what fits first is taken."""
_MILD: Final = frozenset({"under a setting", "note"})

Found = Mapping[str, Any]


def doctor_text(diagnosis: Mapping[str, Any], full: bool = False) -> str:
    """The screen of what `Diagnosis.as_json` gives. No line end at the end."""
    head = [printable(f"{diagnosis['outcome']}: {diagnosis['title']}")]
    foot = list(_foot(diagnosis, full))
    findings = diagnosis["findings"]
    if full:
        body = [line for found in findings for line in _finding(found, _ALL)]
        return "\n".join([*head, *body, *foot])
    return "\n".join([*head, *_fitting(findings, LINES - len(head) - len(foot)), *foot])


def _fitting(findings: Sequence[Found], room: int) -> list[str]:
    """The findings that fit into so many lines, and how many more there are.

    Where not all fit at full length, the mild ones have one line first, and then the others less.
    """
    for serious, mild in _LENGTHS:
        blocks = [_finding(found, mild if _is_mild(found) else serious) for found in findings]
        if sum(map(len, blocks)) <= room:
            return [line for block in blocks for line in block]
    body: list[str] = []
    for at, found in enumerate(findings):
        block = _finding(found, 1 if _is_mild(found) else 2)
        if len(body) + len(block) > room - 1:
            rest = Counter(_label(one) for one in findings[at:])
            words = ", ".join(f"{count} {label}" for label, count in rest.items())
            return [*body, *_labelled("and", f"{words}: -v shows all", 1)]
        body += block
    return body


def _is_mild(found: Found) -> bool:
    return found["severity"] in _MILD


def _finding(found: Found, length: int) -> list[str]:
    """A finding: 1 what it is; 2 and what to do; 3 and why; 4 and what is known of it."""
    text = found["what"]
    if found["where"]:
        calls = f"{found['count']} calls: " if found["count"] > 1 else ""
        text += f" ({calls}{found['where']})"
    lines = _labelled(_label(found), text, 1 if length < 3 else 2 if length < _ALL else _ALL)
    if length > 2:
        lines += _labelled("", found["why"], length - 2)
    if length > 1 and found["fix"]:
        lines += _labelled(
            "", f"fix: {found['fix']}", 1 if length < 4 else 2 if length < _ALL else _ALL
        )
    if length > 3 and found["evidence"] and not _is_mild(found):
        lines += _labelled("", f"known: {found['evidence']}", 1 if length < _ALL else _ALL)
    return lines


def _label(found: Found) -> str:
    severity = str(found["severity"])
    return _LABELS.get(severity, severity)


def _foot(diagnosis: Mapping[str, Any], full: bool) -> Iterator[str]:
    operations = diagnosis["operations"]
    if operations:
        counts = Counter(one["class"] for one in operations)
        words = ", ".join(f"{counts[name]} {name}" for name in counts)
        yield from _labelled("operations", f"{len(operations)}: {words}", 2)
        if full:
            yield from _operations(operations)
    if diagnosis["compared"]:
        yield from _labelled("compared", diagnosis["compared"], 1)
    if diagnosis["machine"]:
        yield from _machine(diagnosis["machine"])
    rules = diagnosis["rules"]
    if rules:
        counts = Counter(_verdict(rule) for rule in rules)
        words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        yield from _labelled("rules", f"{len(rules)}: {words}", 1)
        if full:
            for rule in rules:
                said = rule["said"] or rule["value"] or ""
                yield from _labelled("", f"{rule['name']}: {_verdict(rule)}  {said}", 2)


def _verdict(rule: Found) -> str:
    """Its verdict; what nobody set and nobody has to set is left as it is, and recorded."""
    is_free = rule["verdict"] == "unset" and rule["fill"] is None
    return "left as it is" if is_free else str(rule["verdict"])


def _operations(operations: Iterable[Found]) -> Iterator[str]:
    for one in operations:
        rows = ", ".join(dict.fromkeys(row["varies"] for row in one["rows"]))
        known = "; ".join(filter(None, [rows, one["known"]]))
        calls = f"{one['calls']} call{'s' * (one['calls'] != 1)}"
        yield from _labelled("", f"{one['op']}: {one['class']}, {calls}"
                             + (f" ({known})" if known else ""), 1)  # fmt: skip


def _machine(machine: Mapping[str, Any]) -> Iterator[str]:
    torch = machine["torch"]
    words = [machine["cpu"], torch.get("capability"), f"{machine['usable cores']} cores"]
    gpus = Counter(torch.get("gpus", ()))
    words += [f"{count} x {name}" for name, count in gpus.items()] or ["no GPU"]
    yield from _labelled("machine", ", ".join(filter(None, words)), 1)
    versions = [f"{name} {version}" for name, version in machine["versions"].items()]
    software = [f"Python {machine['python']}", *versions]
    if "threads" in torch:
        software.append(f"{torch['threads']} thread{'s' * (torch['threads'] != 1)}")
    yield from _labelled("software", ", ".join(software), 2)


def _labelled(label: str, text: str, most: int) -> list[str]:
    """A text behind its label, in `most` lines."""
    lines = textwrap.wrap(printable(text), WIDTH - _LABEL, break_on_hyphens=False) or [""]
    if len(lines) > most:
        last = " ".join(lines[most - 1 :])
        lines = [*lines[: most - 1], last[: WIDTH - _LABEL - 3] + "..."]
    return [f"{label if not at else '':{_LABEL}}{line}".rstrip() for at, line in enumerate(lines)]
