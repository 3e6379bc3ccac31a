"""One thing that a doctor found, and what a list of them amounts to.

1. A finding says what it is, where, why it matters, how it is mended, and what is known of it.
2. `ranked` puts the worst first: what did differ, what can, what nobody could tell, what is held.
3. `outcome` is the exit status: 1 where bits can change, else 2 where it could not be told, else 0.

>>> held = Finding(severity="under a setting", what="aten.index_put_", why="threads", fix="")
>>> ranked([held, Finding(severity="varies", what="x", why="y", fix="z")])[0].what
'x'
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from bitstep.records import Outcome

Severity = Literal[
    "differs",
    "varies",
    "missed by a checkpoint",
    "may vary",
    "unknown",
    "outside of view",
    "under a setting",
    "note",
]
"""From the worst to the mildest.

differs                 two executions gave other bits
varies                  bits can be others the next time, as the program and machine are now
missed by a checkpoint  state that changes the next step and that a checkpoint would not hold
may vary                as `varies`, but a condition of it could not be checked
unknown                 nothing is known of an operation: custom, external, compiled
outside of view         work that was not observed at all
under a setting         repeats, because a setting is held; where it is not, it varies
note                    worth knowing; changes no bit by itself
"""

CHANGES: Final[frozenset[Severity]] = frozenset(
    {"differs", "varies", "missed by a checkpoint", "may vary"}
)
UNTOLD: Final[frozenset[Severity]] = frozenset({"unknown", "outside of view"})
_RANK: Final = {severity: at for at, severity in enumerate(get_args(Severity))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found; every text is one line without an end."""

    severity: Severity
    what: str
    """Its subject first: "aten.index_put_ adds duplicates in any order"."""
    where: str = ""
    """Site, module, file or process; "" where it concerns all of the program or machine."""
    why: str
    """The mechanism, and under which condition bits change."""
    fix: str
    """What to do, as an order; "" where nothing is to be done."""
    evidence: str = ""
    """What was measured here, or which source says it, with its mark."""
    count: int = 1
    """How often it was seen: calls, tensors, streams."""


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first; of one severity in the order that they came in. Equal ones once."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda found: _RANK[found.severity]))


def outcome(findings: Iterable[Finding]) -> Outcome:
    """SAME: nothing varies. DIFFERENT: bits can change. UNVERIFIED: it could not be told."""
    severities = {found.severity for found in findings}
    if severities & CHANGES:
        return Outcome.DIFFERENT
    return Outcome.UNVERIFIED if severities & UNTOLD else Outcome.SAME
