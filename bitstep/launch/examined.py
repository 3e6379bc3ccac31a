"""Run a program to be examined: in a session of its own, with a log and a limit of time.

1. It starts with the order in its environment; its words and its source are not touched.
2. What its processes leave is read; then whatever of it still runs is killed.

>>> run_examined(["python", "train.py"], Order(folder=Path("out")), {}).processes  # doctest: +SKIP
({'rank': 0, 'steps': [...]},)
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bitstep.errors import printable
from bitstep.launch.program import find_program
from bitstep.observe.examine import Order

LIMIT: Final = 300.0
"""Seconds after which a run is given up."""
POLL: Final = 0.05
PLACE: Final = "{run}"
"""In a word of the command: a folder made for each run, for what the program writes."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What a run left."""

    processes: tuple[dict[str, Any], ...]
    """One for each process that trained, by time of its end."""
    forks: tuple[dict[str, Any], ...]
    """One for each child with a perturbed stream."""
    exit: int | None
    """Exit status; None: it was killed after the limit."""
    folder: Path
    last_words: str
    """The last lines of its log, the last first; empty where it said nothing."""


def run_examined(
    command: Sequence[str],
    order: Order,
    changes: Mapping[str, str],
    *,
    limit: float = LIMIT,
    place: Path | None = None,
    ends_with_first: bool = False,
) -> Examined:
    """Run the command. Raises UsageError where there is no such command.

    Args:
        command: the words of the program; PLACE in them becomes a folder of this run.
        order: what is examined; its folder must be new.
        changes: variables that are added to this environment.
        limit: seconds.
        place: the folder for PLACE, by default a new one.
        ends_with_first: end when all processes of the first group are through: a command may train
            several times.
    """
    order.folder.mkdir(parents=True)
    place = place or order.folder / "work"
    place.mkdir(exist_ok=True)
    words = [word.replace(PLACE, str(place)) for word in command]
    file = find_program(words[0])
    log = order.folder / "log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [file, *words[1:]],
            env=order.to_environment({**os.environ, **changes}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        status = _wait(process, limit, order.folder if ends_with_first else None)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return Examined(
        processes=_read(order.folder, "process-*.json"),
        forks=_read(order.folder, "fork-*.json"),
        exit=status,
        folder=order.folder,
        last_words=last_words(last_lines(log)),
    )


def last_lines(file: Path) -> tuple[str, ...]:
    """The lines at the end of a program's output, as one may print them."""
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - (1 << 16)))
        text = stream.read().decode(errors="replace")
    return tuple(printable(line.rstrip()) for line in text.splitlines() if line.strip())


def last_words(lines: Sequence[str]) -> str:
    """The last four lines as one, the last first: where it is cut, the cause of an end stays."""
    return " | ".join(reversed(lines[-4:]))


def _wait(process: subprocess.Popen[bytes], limit: float, folder: Path | None) -> int | None:
    """The exit status; None: it is to be killed, after the limit or as all that counts is there."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(POLL)
        if folder is not None and _is_through(folder):
            return None
    return None


def _is_through(folder: Path) -> bool:
    """Whether every process of a group has left its file."""
    files = list(folder.glob("process-*.json"))
    return bool(files) and len(files) >= json.loads(files[0].read_bytes())["world"]


def _read(folder: Path, pattern: str) -> tuple[dict[str, Any], ...]:
    found = [json.loads(path.read_bytes()) for path in folder.glob(pattern)]
    return tuple(sorted(found, key=lambda said: (said["time"], said["rank"])))
