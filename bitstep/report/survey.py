"""A survey as a table: what varies, with what, by how much; and what another survey has otherwise.

1. Cases that vary alike share a row, types of one case a name: "sum f32 bf16".
2. What never varied is only counted.

>>> family("sum of rows f32"), family("topk ties")
(('sum of rows', 'f32'), ('topk ties', ''))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from bitstep.contract.survey import AXES, Axis, Difference, Measured, Report

HEAD = ("varies with", "how", "cases")
MOST_NAMES = 4
"""Names in a row of another environment; a report has all."""
MOST_DIFFERENCES = 30
_TYPES = ("f32", "f64", "bf16", "f16")
Named = Sequence[tuple[str, Measured]]


def rows(report: Report) -> list[tuple[str, str, str]]:
    """The rows of the table, in the order of the axes."""
    cases = list(report.cases.items())
    threads = ", ".join(map(str, report.threads))
    found = [
        *_grouped("run to run", _races(cases)),
        *_grouped("the flag", ((name, "it raises", "") for name, m in cases if m.raises)),
        *_grouped("thread count", _letters(cases, "threads", threads)),
        *_grouped("alignment", _letters(cases, "alignment", "0 to 15 elements")),
        *_grouped("rows", _few(cases, report.rows)),
    ]
    table = [(axis, how, _listed(names)) for axis, how, names in found]
    others = _grouped("environment", _environments(cases, report.environments))
    return [*table, *((axis, how, _listed(names, MOST_NAMES)) for axis, how, names in others)]


def summary(report: Report) -> str:
    """The line below the table."""
    cases = report.cases.values()
    failed = [(name, "") for name, measured in report.cases.items() if measured.failed]
    still = sum(not (m.failed or m.raises or any(map(m.varies, AXES))) for m in cases)
    words = f"{still} of {len(report.cases)} cases vary with nothing that was tried"
    return (
        f"{words}; {len(failed)} cannot be run here: {_listed(failed, MOST_NAMES)}"
        if failed
        else words
    )


def difference_lines(found: Sequence[Difference]) -> list[str]:
    """What is another in two surveys, a line for each axis and case."""
    other_bits = [(item.case, "") for item in found if item.axis == "bits"]
    outcomes = [item for item in found if item.axis != "bits"]
    lines = [f"{d.case}: {d.axis}: here {d.ours or '-'}, there {d.theirs or '-'}" for d in outcomes]
    if len(lines) > MOST_DIFFERENCES:
        lines[MOST_DIFFERENCES:] = [f"and {len(lines) - MOST_DIFFERENCES} more"]
    if any(item.axis.startswith("run to run") for item in outcomes):
        lines.append("a race is seen by chance: that only one survey saw it may mean nothing")
    if other_bits:
        lines.append(f"other bits at one thread: {_listed(other_bits, 3 * MOST_NAMES)}")
    return lines or ["every axis of every case that both have came out alike, with the same bits"]


def family(name: str) -> tuple[str, str]:
    """The name of a case without its type, and the type."""
    start, _, last = name.rpartition(" ")
    return (start, last) if last in _TYPES else (name, "")


Told = Iterable[tuple[str, str, str]]
"""Case, how it varies, a word that stands behind its name."""


def _grouped(axis: str, told: Told) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, how, word in told:
        groups.setdefault(how, []).append((name, word))
    return ((axis, how, names) for how, names in groups.items())


def _races(cases: Named) -> Told:
    for name, m in cases:
        if m.varies("off") or m.varies("on"):
            flag = "raises" if m.raises else "varies too" if m.varies("on") else "repeats"
            distinct, of = max(m.off)
            yield name, f"flag on: {flag}", f"{distinct}/{of}"


def _letters(cases: Named, axis: Axis, how: str) -> Told:
    for name, m in cases:
        if m.varies(axis):
            parts = m.parts.get(axis, ())
            yield name, how, " ".join(part for part in parts if part.startswith("grad."))


def _few(cases: Named, counts: Sequence[int]) -> Told:
    for name, m in cases:
        if m.varies("rows"):
            at = [str(n) for n, letter in zip(counts, m.rows, strict=True) if letter == "x"]
            yield name, "a few at a time", f"({' '.join(at) if '=' in m.rows else 'any'})"


def _environments(cases: Named, settings: Sequence[str]) -> Told:
    for number, setting in enumerate(settings, 1):
        for name, m in cases:
            if m.environments and m.environments[number] != "a":
                yield name, setting, "failed" if m.environments[number] == "!" else ""


def _listed(told: Sequence[tuple[str, str]], most: int = 1000) -> str:
    """Names with the types of one family together, the first `most` of them."""
    families: dict[str, list[tuple[str, str]]] = {}
    for name, word in told:
        start, kind = family(name)
        families.setdefault(start, []).append((kind, word))
    names = [" ".join(filter(None, [start, *_kinds(kinds)])) for start, kinds in families.items()]
    more = len(names) - most
    return ", ".join([*names[:most], *([f"and {more} more"] if more > 0 else [])])


def _kinds(kinds: Sequence[tuple[str, str]]) -> list[str]:
    """ "f32 bf16 grad.w", or where the words differ "f32 5/64 bf16 3/64"."""
    words = {word for _, word in kinds}
    if len(words) == 1:
        return [*(kind for kind, _ in kinds), *words]
    return [part for pair in kinds for part in pair]


def about(report: Report) -> Mapping[str, str]:
    """Where a survey was made, in a few words."""
    names = ("model name", "capability", "gpu")
    machine = " ".join(report.machine[name] for name in names if name in report.machine)
    versions = ", ".join(f"{name} {value}" for name, value in sorted(report.versions.items()))
    return {"machine": machine, "versions": versions}
