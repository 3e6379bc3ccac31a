"""What to do next: a command where recording deeper would tell more, else the remedy.

>>> record("op", 7)
'bitstep record --level op --steps 7:8 -o runs/NAME -- COMMAND'
"""

from __future__ import annotations

from collections.abc import Sequence

from bitstep.contract.classes import MUST
from bitstep.contract.manifest import Difference as KeyDifference
from bitstep.diff.difference import Cause, Kind, Placed
from bitstep.diff.localise import Course
from bitstep.diff.slots import LEVELS


def hints(
    causes: Sequence[Cause],
    courses: Sequence[Course],
    reasons: Sequence[str],
    manifest: Sequence[KeyDifference],
    placed: Sequence[Placed],
) -> tuple[str, ...]:
    """What to do next, the most useful first."""
    if not causes:
        return _unverified(reasons)
    first = causes[0]
    levels = [course.level for course in courses if course.level is not None]
    level = min(levels, default=len(LEVELS) - 1)
    found = []
    if any(one.class_ == MUST for one in manifest):
        found.append("make the settings equal that must match, and compare again")
    remedy = _remedy(first, level)
    found += [remedy + (_local(first, placed) if "--steps" in remedy else "")]
    return tuple(filter(None, found))


def _local(cause: Cause, placed: Sequence[Placed]) -> str:
    """Which step of a resumed attempt it is, which counts its own."""
    attempts = {"a": cause.where.attempt_a, "b": cause.where.attempt_b}
    words = [
        f"{max(cause.where.step - one.step, 1)} in attempt {one.attempt} of {one.run.upper()}"
        for one in placed
        if one.step > 0 and attempts[one.run] == one.attempt
    ]
    return f" (step {', '.join(words)})" if words else ""


def record(level: str, step: int, more: str = "") -> str:
    """The command that records one step deeper; steps count from 0, the end is left out."""
    return f"bitstep record --level {level} --steps {step}:{step + 1}{more} -o runs/NAME -- COMMAND"


def _remedy(cause: Cause, level: int) -> str:
    step = max(cause.where.step, 0)
    if cause.hint == "rehash":
        return "record both again: " + record("op", step, " --rehash")
    if cause.hint == "ranks":
        return "record all ranks of both: " + record(LEVELS[level], step)
    if cause.hint and cause.hint != "deeper":
        return cause.hint
    if level < len(LEVELS) - 1:
        return "record both again: " + record("op", step)
    if cause.kind is Kind.UNSEEN:
        return "record both again: " + record("op", step, " --rehash")
    return ""


def _unverified(reasons: Sequence[str]) -> tuple[str, ...]:
    if not reasons:
        return ()
    return ("record both runs again, all ranks, to their end",)
