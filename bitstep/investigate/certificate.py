"""What a proof leaves behind: findings, the verdict over them, and certificate.json.

certificate = Certificate(recipe="nano", ...)
certificate.write(Path("runs/proof"))
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bitstep.checkpoint.disk import sync, write_text
from bitstep.errors import RunError
from bitstep.investigate.arms import ArmReport
from bitstep.records import Outcome, Verdict

NAME = "certificate.json"
NOT_TRIED = "not tried"
"""Outcome of a guarantee that the plan has no arm for."""

_WORDS = {
    Outcome.SAME: "proven",
    Outcome.DIFFERENT: "refuted",
    Outcome.UNVERIFIED: "unverified",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One guarantee or control, and what became of it."""

    name: str
    arms: tuple[str, ...]
    outcome: str
    """proven, refuted, unverified or not tried; of a control caught, inert or missed."""
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
        """Refuted before unverified before proven; the title says what was not tried."""
        broken = [f.name for f in self.guarantees if f.outcome == "refuted"]
        if broken:
            return _verdict(Outcome.DIFFERENT, broken)
        doubtful = [f.name for f in self.guarantees if f.outcome not in ("proven", NOT_TRIED)]
        doubtful += [f.name for f in self.controls if f.outcome not in ("caught", "inert")]
        if doubtful:
            return _verdict(Outcome.UNVERIFIED, doubtful)
        untried = [f"{f.name} {NOT_TRIED}" for f in self.guarantees if f.outcome == NOT_TRIED]
        title = ", ".join([_WORDS[Outcome.SAME], *untried])
        return Verdict(Outcome.SAME, title, tuple(untried))

    def to_json(self) -> str:
        """The text of certificate.json."""
        value = {"format": 1, "verdict": _WORDS[self.verdict.outcome], **asdict(self)}
        return json.dumps(value, indent=2) + "\n"

    def write(self, folder: Path) -> None:
        """Leave certificate.json in the folder, whole or not at all. Raises RunError."""
        path = folder / NAME
        part = path.with_suffix(".part")
        try:
            write_text(part, self.to_json().encode())
            part.rename(path)
            sync(folder)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise RunError(f"cannot write {path}: {error.strerror}; correct that") from None


def _verdict(outcome: Outcome, reasons: list[str]) -> Verdict:
    return Verdict(outcome, _WORDS[outcome], tuple(reasons))
