"""What a doctor found, as one value: of a machine, or of a program.

1. `Diagnosis` holds the findings, and what they rest on: operations, executions, rules.
2. Its outcome is the exit status; `as_json` is all of it as data, docs/doctor.md is its contract.

>>> Diagnosis((), ()).title
'nothing varies'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from bitstep.investigate.doctor.finding import CHANGES, UNTOLD, Finding, outcome
from bitstep.records import Outcome

if TYPE_CHECKING:
    from bitstep.investigate.doctor.operations import Operation
    from bitstep.launch.first_steps import FirstSteps

FORMAT: Final = 1
"""Version of the JSON."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a doctor found."""

    command: tuple[str, ...]
    """Empty: the machine."""
    findings: tuple[Finding, ...]
    """The worst first."""
    machine: Mapping[str, Any] | None = None
    """What a fresh process found, without its rules."""
    rules: tuple[Mapping[str, Any], ...] = ()
    operations: tuple[Operation, ...] = ()
    executions: tuple[FirstSteps, ...] = ()
    compared: str = ""
    """What two executions showed, in a sentence."""

    @property
    def outcome(self) -> Outcome:
        """SAME: nothing varies. DIFFERENT: bits can change. UNVERIFIED: it could not be told."""
        return outcome(self.findings)

    @property
    def title(self) -> str:
        """One line."""
        changes = sum(found.severity in CHANGES for found in self.findings)
        untold = sum(found.severity in UNTOLD for found in self.findings)
        also = f", {untold} could not be told" if untold else ""
        if changes:
            return f"{_many(changes)} that can change bits{also}"
        if untold:
            return f"could not tell: {_many(untold)}"
        return "nothing varies"

    def as_json(self) -> dict[str, Any]:
        """All of it; docs/doctor.md is its contract."""
        return {
            "format": FORMAT,
            "outcome": self.outcome.name.lower(),
            "status": int(self.outcome),
            "title": self.title,
            "command": list(self.command),
            "findings": [asdict(found) for found in self.findings],
            "operations": [operation.as_json() for operation in self.operations],
            "compared": self.compared,
            "executions": [_execution_json(one) for one in self.executions],
            "machine": self.machine,
            "rules": list(self.rules),
        }


def _many(count: int) -> str:
    return f"{count} finding{'s' * (count != 1)}"


def _execution_json(one: FirstSteps) -> dict[str, Any]:
    return {
        "recording": str(one.run), "exit": one.exit, "timed_out": one.timed_out,
        "world": one.world, "stopped": list(one.stopped), "seconds": round(one.seconds, 1),
        "last_lines": list(one.last_lines),
    }  # fmt: skip
