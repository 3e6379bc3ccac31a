"""The report of a survey: what it holds, how it is read, and what is different in two of them.

1. `Measured` is what was found of one case; `Report` is all of it, with the machine and versions.
2. `differences` names what is another in two reports. That a race was seen in one of them only may
   be chance; everything else is not.
3. `Report.text` is the file, which `survey_file` reads.

What was equal is written as letters, one for each value of an axis, the same letter for the same
bits: threads "abbb" says that 1 thread gave one result, and 2, 4 and 8 another.

Nothing here imports torch.

>>> partition(["x", "y", "x"])
'aba'
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NamedTuple, get_args

from bitstep.errors import ContractError

FORMAT: Final = 1
OFFSETS: Final = 16
"""Elements by which inputs are moved: 0 to 15."""
Counts = tuple[tuple[int, int], ...]
"""For each number of threads: distinct results, of so many. In the file "1/8 5/64"."""
Axis = Literal["off", "on", "threads", "alignment", "rows", "environments"]
AXES: Final = get_args(Axis)
LETTERED: Final = ("threads", "alignment", "rows", "environments")
"""Axes with a letter for each value; in the file one letter alone stands for all."""
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was found of one case."""

    op: str
    ops: tuple[str, ...] = ()
    """All that torch called for it."""
    bits: str = ""
    """Of its results at one thread, 16 hex digits; "": it could not be run at all."""
    failed: str = ""
    """Why it could not be run at all."""
    off: Counts = ()
    """Without the deterministic flag."""
    on: Counts = ()
    """With it; in the file left out where it is the same, and nothing is refused."""
    raises: str = ""
    """What it said with the flag, where it refused."""
    threads: str = ""
    """Letters; "": cannot be told, as results vary at one number of threads."""
    alignment: str = ""
    """Letters, by elements that the inputs lie after a multiple of 64 bytes."""
    rows: str = ""
    """"=" or "x" for each number of rows: those of the whole, or others; "": has no rows."""
    environments: str = ""
    """Letters, the first for none; "!": failed there."""
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Axis to the results that vary on it, where there are several."""

    def varies(self, axis: Axis) -> bool:
        """Whether something varied on an axis."""
        if axis in ("off", "on"):
            return any(distinct > 1 for distinct, _ in getattr(self, axis))
        return any(letter not in "a=!" for letter in getattr(self, axis))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a survey found."""

    device: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    inputs: str
    """Digest of all inputs: equal where the reports can be compared."""
    threads: tuple[int, ...]
    rows: tuple[int, ...]
    environments: tuple[str, ...]
    cases: Mapping[str, Measured]

    def text(self) -> str:
        """The file: a line for each case."""
        head = {"format": FORMAT, **asdict(self)}
        del head["cases"]
        cases = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(_short(measured), separators=(',', ':'))}"
            for name, measured in self.cases.items()
        )
        return f'{json.dumps(head, indent=1)[:-2]},\n "cases": {{\n{cases}\n}}}}\n'


def _short(measured: Measured) -> dict[str, Any]:
    table = asdict(measured)
    table["on"] = "" if measured.on == measured.off else _fractions(measured.on)
    table["off"] = _fractions(measured.off)
    for axis in LETTERED:
        table[axis] = table[axis][:1] if len(set(table[axis])) == 1 else table[axis]
    return {name: value for name, value in table.items() if value}


def _fractions(counts: Counts) -> str:
    return " ".join(f"{distinct}/{of}" for distinct, of in counts)


def partition(bits: Iterable[object]) -> str:
    """A letter for each, the same letter for equal ones, in the order of their first appearance."""
    known: dict[object, str] = {}
    return "".join(known.setdefault(key, _LETTERS[min(len(known), 25)]) for key in bits)


class Difference(NamedTuple):
    """One thing that is another in two reports."""

    case: str
    axis: str
    ours: str
    theirs: str


def differences(ours: Report, theirs: Report) -> tuple[Difference, ...]:
    """What is another in two reports, of the cases that both have.

    Raises ContractError if the reports cannot be compared.
    """
    for name in ("device", "inputs", "threads", "rows", "environments"):
        if getattr(ours, name) != getattr(theirs, name):
            said = f"their {name} are {getattr(ours, name)} and {getattr(theirs, name)}"
            raise ContractError(f"the surveys differ: {said}; make both with one version")
    common = [name for name in ours.cases if name in theirs.cases]
    if not common:
        raise ContractError("the surveys have no case in common: make both with the same --ops")
    return tuple(
        Difference(name, axis, a, b)
        for name in common
        for axis, a, b in _both(ours.cases[name], theirs.cases[name])
        if a != b
    )


def _both(ours: Measured, theirs: Measured) -> Iterator[tuple[str, str, str]]:
    mine, other = _outcomes(ours), _outcomes(theirs)
    return ((axis, mine[axis], other[axis]) for axis in mine)


def _outcomes(measured: Measured) -> dict[str, str]:
    return {
        "bits": measured.bits or "failed",
        "run to run": _word(measured.varies("off")),
        "run to run, flag on": "raises" if measured.raises else _word(measured.varies("on")),
        "threads": measured.threads,
        "alignment": measured.alignment,
        "rows": measured.rows,
        "environments": measured.environments,
    }


def _word(varies: bool) -> str:
    return "varies" if varies else "repeats"
