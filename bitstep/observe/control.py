"""The control file of a run: change the level of a live recording from a step on.

1. RUN/control.toml may be written, replaced or removed at any time, before the run or during it.
2. Every process looks at it once a step: one `stat`, and a read only when it has changed.
3. A file that cannot be meant is reported once and changes nothing.

    level = "op"
    from_step = 120
    to_step = 130     # without it: to the end

>>> Control(Path("/tmp/run"), "step").level(119)
'step'
"""

from __future__ import annotations

import logging
import os
import tomllib
from pathlib import Path
from typing import Any, Final

from bitstep.errors import UsageError, printable
from bitstep.observe.options import END, LEVELS, Level

NAME: Final = "control.toml"
MAX_BYTES: Final = 1 << 16

logger = logging.getLogger("bitstep")


class Control:
    """What the control file of `run` says; `usual` is the level where it says nothing."""

    def __init__(self, run: Path, usual: Level) -> None:
        self._path = run / NAME
        self._usual = usual
        self._seen: tuple[int, ...] | None = None
        self._level = usual
        self._steps = (0, 0)

    def level(self, step: int) -> Level:
        """The level of a step that is about to begin. Never raises."""
        seen = self._stamp()
        if seen != self._seen:
            self._seen = seen
            self._level, self._steps = self._read() if seen else (self._usual, (0, 0))
        first, last = self._steps
        return self._level if first <= step < last else self._usual

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> tuple[Level, tuple[int, int]]:
        try:
            with open(self._path, "rb", opener=_without_waiting) as file:
                return _parse(file.read(MAX_BYTES).decode())
        except (OSError, ValueError, RecursionError, UsageError) as error:
            words = printable(" ".join(str(error).split()))
            logger.warning("%s is not followed: %s", self._path, words)
            return self._usual, (0, 0)


def _parse(text: str) -> tuple[Level, tuple[int, int]]:
    table: dict[str, Any] = tomllib.loads(text)
    level = table.pop("level", None)
    first, last = table.pop("from_step", None), table.pop("to_step", END)
    if table:
        raise UsageError(f"{next(iter(table))!r} is none of level, from_step, to_step")
    if level not in LEVELS:
        raise UsageError(f"level = {level!r}: give one of {', '.join(LEVELS)}")
    if type(first) is not int or type(last) is not int or not 0 <= first < last:
        raise UsageError("give from_step, and to_step after it, as numbers of steps")
    return level, (first, last)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would be waited for without end
