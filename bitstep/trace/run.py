"""The traces of a run: one per attempt, with what its end marker says.

1. Every directory `attempt-000`, `attempt-001` ... of a run is one attempt.
2. Its trace is read (`read_trace`), then `end.json`, which process 0 writes last.
3. What is missing between attempts, or contradicts, is damage of the attempt that shows it.

    for attempt in read_run(run):
        print(attempt.number, attempt.status, len(attempt.trace.steps))
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bitstep.errors import RunError, TraceError
from bitstep.trace.files import open_plain
from bitstep.trace.reader import Trace, read_trace

LIFE: Final = "life.json"
"""With it the directory of an attempt arrives that a recorder makes."""

_NAME: Final = re.compile(r"attempt-(\d{3,})", re.ASCII)
_STATUS: Final = ("finished", "stopped")
_MAX_END_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class AttemptTrace:
    """One life of a run, as it was recorded."""

    number: int
    trace: Trace
    status: str | None
    """finished or stopped (saved, to be resumed); None: no end marker, so killed or running."""
    damage: tuple[str, ...]
    """Of the trace and of the end marker."""

    @property
    def is_recording(self) -> bool:
        """Whether a recorder wrote it, from outside of the program, and not our engine."""
        return (self.trace.directory / LIFE).exists()


def read_run(run: Path) -> tuple[AttemptTrace, ...]:
    """The attempts of a run, in order.

    Raises RunError where there is no attempt, TraceError as `read_trace` does and for an attempt
    that is a link.
    """
    try:
        names = sorted(os.listdir(run))
    except OSError as error:
        raise RunError(f"{run}: no run to read: {error.strerror}") from error
    numbers = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
    if not numbers:
        raise RunError(f"{run}: no run: it holds no directory attempt-000")
    attempts = []
    for before, number in zip([-1, *numbers], numbers, strict=False):
        lost = [f"cut: attempt-{number - 1:03d}: the attempt is missing"]
        attempts.append(_read_attempt(run, number, lost if number != before + 1 else []))
    return tuple(attempts)


def _read_attempt(run: Path, number: int, damage: list[str]) -> AttemptTrace:
    directory = run / f"attempt-{number:03d}"
    try:
        is_directory = stat.S_ISDIR(directory.lstat().st_mode)
    except OSError as error:
        raise TraceError(f"{directory}: cannot be read: {error.strerror}") from error
    if not is_directory:
        raise TraceError(f"{directory}: is a link or a file: an attempt is a directory of the run")
    trace = read_trace(directory)
    status, problem = _read_end(directory / "end.json", trace)
    damage = [*damage, *trace.damage, *([problem] if problem else [])]
    return AttemptTrace(number, trace, status, tuple(damage))


def _read_end(path: Path, trace: Trace) -> tuple[str | None, str | None]:
    """The status in an end marker, and what is wrong with it."""
    file = open_plain(path)
    if file is None:
        return None, None
    with file:
        raw = file.read(_MAX_END_BYTES)
    try:
        end: Any = json.loads(raw)
        status, step, root = end["status"], end["step"], int(end["root"], 16)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, "damaged: end.json: not an end marker of a bitstep attempt"
    if status not in _STATUS or not isinstance(step, int):
        return None, f"damaged: end.json: status {status!r} at step {step!r}"
    if trace.steps.get(step, root) != root:
        return None, (
            f"damaged: end.json: root {root:016x} of step {step}, the trace has "
            f"{trace.steps[step]:016x}"
        )
    return status, None
