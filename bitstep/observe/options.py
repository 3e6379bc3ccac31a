"""What a recording was asked for: checked once, and handed to every process of the program.

1. `RecordOptions.parse` takes the words of a command line; the constructor takes values. Both
   refuse what cannot be meant with a UsageError of one line.
2. `to_environment` puts the options into one variable, and `from_environment` reads it in the
   processes that the program starts.

Imports no torch: every Python process of a recorded program may import this module.

>>> RecordOptions.parse("runs/a", steps="10:20", ranks="0,3", budget="2GB").steps
(10, 20)
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from bitstep.errors import UsageError

Level = Literal["step", "phase", "module", "op"]

VARIABLE: Final = "BITSTEP_RECORD"
"""Holds the options as JSON, in the environment of the program."""
PROBE: Final = "BITSTEP_PROBE"
"""Holds the directory for the probe of the inertness check (`bitstep.observe.probe`)."""
PREFLIGHT: Final = "BITSTEP_PREFLIGHT"
"""Holds "STEPS:FOLDER" in a program that a doctor looks at (`bitstep.observe.preflight`)."""
LEAVE: Final = "leave"
"""File of that folder at whose sight the processes that wait after their last step leave."""
LEVELS: Final[tuple[str, ...]] = get_args(Level)
"""From the least to the most."""
END: Final = 2**63 - 1
"""Stands for the last step of "10:"."""

_UNITS: Final = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)},
}


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What to record, and where."""

    directory: Path
    """The run directory; made absolute, because a program may change its own."""
    level: Level = "op"
    steps: tuple[int, int] | None = None
    """Optimizer steps (first, last), without the last as in a slice; the others are recorded at
    level step. Counted from 1 in each attempt, 0 being all before; None: all of them."""
    ranks: tuple[int, ...] | None = None
    modules: tuple[str, ...] | None = None
    """Globs of module paths, as `fnmatch` has them."""
    budget: int | None = None
    """Bytes that each process may write."""
    rehash: bool = False
    """Hash every input, and carry no digest."""
    strict: bool = False
    """End the program when recording fails, instead of going on without."""
    steps_per_file: int = 1000
    """Steps after which a process begins its next file."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", Path(os.path.abspath(self.directory)))
        if self.level not in LEVELS:
            raise UsageError(f"level {self.level!r}: give one of {', '.join(LEVELS)}")
        if self.steps is not None and not 0 <= self.steps[0] < self.steps[1] <= END:
            first, last = self.steps
            raise UsageError(f"steps {first}:{last} are none: the last is not among them")
        if self.ranks is not None and (not self.ranks or min(self.ranks) < 0):
            raise UsageError(f"ranks {self.ranks}: give numbers from 0")
        if self.modules is not None and not all(self.modules):
            raise UsageError("modules: an empty pattern matches nothing; leave it out")
        if self.budget is not None and self.budget <= 0:
            raise UsageError(f"a budget of {self.budget} bytes holds nothing: leave it out")

    @classmethod
    def parse(
        cls,
        directory: str | Path,
        level: str = "op",
        steps: str | None = None,
        ranks: str | None = None,
        modules: str | None = None,
        budget: str | None = None,
        rehash: bool = False,
        strict: bool = False,
    ) -> Self:
        """From words: steps "10:20", "10:", ":20" or "10"; ranks "0,3"; modules "a.*,b"; a
        budget "500MB", "2GB" or "2GiB". Raises UsageError."""
        return cls(
            directory=Path(directory),
            level=level,  # type: ignore[arg-type]  # checked by __post_init__
            steps=None if steps is None else _steps(steps),
            ranks=None if ranks is None else tuple(_number(word, "rank") for word in _words(ranks)),
            modules=None if modules is None else tuple(_words(modules)),
            budget=None if budget is None else _bytes(budget),
            rehash=rehash,
            strict=strict,
        )

    def to_environment(self) -> dict[str, str]:
        """The one variable that the processes of the program need."""
        return {VARIABLE: json.dumps({**asdict(self), "directory": str(self.directory)})}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """The options, or None where nothing is to be recorded. Raises UsageError."""
        text = environment.get(VARIABLE)
        if not text:
            return None
        try:
            fields: dict[str, Any] = json.loads(text)
            for name in ("steps", "ranks", "modules"):
                fields[name] = None if fields[name] is None else tuple(fields[name])
            return cls(**{**fields, "directory": Path(fields["directory"])})
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(
                f"{VARIABLE} is not what `bitstep record` writes there ({error}): unset it"
            ) from None


def _steps(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not colon:
        return (only := _number(first, "step")), only + 1
    return _number(first or "0", "step"), _number(last, "step") if last else END


def _number(word: str, what: str) -> int:
    if not (word.isascii() and word.isdecimal()):
        example = "10:20" if what == "step" else "0,3"
        raise UsageError(f"{word!r} is no {what}: give numbers from 0, as in {example}")
    return int(word)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Z]*)", text.strip().upper(), re.ASCII)
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"{text!r} is no budget: give bytes, as in 500MB, 2GB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2]])
