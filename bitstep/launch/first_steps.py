"""Run a program for its first steps only: recorded at level `op`, then stopped, all of it.

1. It starts in a session of its own with the recorder and the preflight attached; what it says
   goes to files.
2. A process whose last step has ended writes its notes and waits. When all ranks wait, or the
   first has waited long enough, they are told to leave.
3. What is left of the program then, launchers and loader processes, gets SIGTERM, later SIGKILL:
   every process whose environment names our folder, torchrun's workers in sessions of their own
   included.

    first = run_first_steps(["python", "train.py"], Path("look"), steps=2, timeout=300)
    first.stopped, first.notes[0]["flags"]["end"]["threads"]
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bitstep.errors import RunError
from bitstep.launch import record
from bitstep.launch.examined import last_lines
from bitstep.launch.program import find_program
from bitstep.observe.options import LEAVE, PREFLIGHT, RecordOptions

PLACE: Final = "{run}"
"""In the command: a folder made for each execution."""
GRACE: Final = 30.0
"""Seconds that the first rank waits for the others."""
LINES: Final = 8
"""Last lines of stderr that are kept."""
COMPLAINS: Final = ("bitstep: not recording", "bitstep: recording stopped")
_LEAVING: Final = 3.0
"""Seconds for launchers to see that their processes left, and again after SIGTERM."""
_POLL: Final = 0.05
_MOST_NOTES: Final = 4 << 20
"""Bytes: a longer file is none of ours."""


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """One execution of the first steps."""

    run: Path
    """The recording."""
    exit: int | None
    """Exit status of a program that ended by itself; None: it was stopped, as it should be."""
    timed_out: bool
    notes: tuple[Mapping[str, Any], ...]
    """Of each process that trained, by rank: see `observe.preflight`."""
    last_lines: tuple[str, ...]
    """Of its stderr."""
    complaints: tuple[str, ...]
    """What the recorder said there: why it could not attach, or stopped."""
    seconds: float

    @property
    def stopped(self) -> tuple[int, ...]:
        """Ranks that came to the end of the last step."""
        return tuple(note["rank"] for note in self.notes if note["stopped"])

    @property
    def world(self) -> int:
        """Ranks that train together; 0 if none trained."""
        return max((note["world"] for note in self.notes), default=0)


def run_first_steps(
    command: Sequence[str],
    folder: Path,
    *,
    steps: int,
    timeout: float,
    variables: Mapping[str, str] | None = None,
) -> FirstSteps:
    """Run the command until `steps` optimizer steps are over on every rank.

    Args:
        command: the program; "{run}" in a word is FOLDER/work.
        folder: new, or empty: gets `recording`, `notes`, `work`, `stdout` and `stderr`.
        steps: how many.
        timeout: seconds for all of it.
        variables: added to the environment of the program.

    Raises UsageError for a command that cannot be found, RunError for a folder that holds a run.
    """
    file = find_program(command[0])
    folder = folder.absolute()
    notes, work = folder / "notes", folder / "work"
    for made in (notes, work):
        made.mkdir(parents=True, exist_ok=True)
    words = [word.replace(PLACE, str(work)) for word in command]
    options = RecordOptions(folder / "recording", level="op")
    record.take(options, words, None)
    mark = f"{steps}:{notes}"
    environment = {**record.environment(options, os.environ), **(variables or {}), PREFLIGHT: mark}
    began = time.monotonic()
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        try:
            process = subprocess.Popen(
                words, executable=file, env=environment, stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise RunError(f"{file} cannot be started: {error.strerror}") from None
    try:
        ended = _wait(process, notes, began + timeout)
    finally:
        _end(process, mark)
    return FirstSteps(
        run=options.directory,
        exit=ended,
        timed_out=ended is None and not (notes / LEAVE).exists(),
        notes=_read(notes),
        last_lines=(lines := last_lines(folder / "stderr"))[-LINES:],
        complaints=tuple(dict.fromkeys(line for line in lines if line.startswith(COMPLAINS))),
        seconds=time.monotonic() - began,
    )


def _wait(process: subprocess.Popen[bytes], notes: Path, until: float) -> int | None:
    """Wait for the end of the last step on all ranks. Gives back the status of a program that
    ended before, else None."""
    first: float | None = None
    while (now := time.monotonic()) < until:
        status = process.poll()
        if status is not None:
            waits = any(note["stopped"] for note in _read(notes))
            return None if waits else status if status >= 0 else 128 - status
        waiting = [note for note in _read(notes) if note["stopped"]]
        if waiting:
            first = now if first is None else first
            if len(waiting) >= waiting[0]["world"] or now > first + GRACE:
                (notes / LEAVE).touch()
                return None
        time.sleep(_POLL)
    return None


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """See that nothing of the program is left."""
    if _has_left(process, mark):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _marked(mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        if _has_left(process, mark):
            return
    process.kill()
    process.wait()


def _has_left(process: subprocess.Popen[bytes], mark: str) -> bool:
    """Whether all of it ends within a while."""
    until = time.monotonic() + _LEAVING
    while time.monotonic() < until:
        if process.poll() is not None and not _marked(mark):
            return True
        time.sleep(_POLL)
    return False


def _marked(mark: str) -> list[int]:
    """Processes whose environment holds our mark, without those that are only to be collected."""
    wanted = f"{PREFLIGHT}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _read(notes: Path) -> tuple[Mapping[str, Any], ...]:
    """The notes, by rank; of a rank that has several (restarts), the last."""
    found: dict[int, Mapping[str, Any]] = {}
    for file in sorted(notes.glob("*.json")):
        if re.fullmatch(r"\d+\.json", file.name) and file.stat().st_size <= _MOST_NOTES:
            note = json.loads(file.read_bytes())
            found[note["rank"]] = note
    return tuple(found[rank] for rank in sorted(found))
