"""What `bitstep run --deterministic` does inside of each Python process that the program starts.

1. `before` is called when torch is about to be imported: the variables are held.
2. `after` is called behind it: torch's settings are held, and the launcher is told so. For a
   recording every process group is measured when it is made, into the manifest.
3. When the process ends the settings are looked at again: drift is one line on stderr, and a file
   for the launcher.

A process that cannot be held to the rules ends with status 2, at its `import torch`.

>>> asked({}) is None
True
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from bitstep.contract.enforce import Enforced, told
from bitstep.errors import BitstepError, ContractError

VARIABLE: Final = "BITSTEP_DETERMINISTIC"
"""Holds an `Asked` as JSON, in the environment of the program."""
HELD, DRIFTED, REFUSED = "held", "drifted", "refused"
"""First words of the names of files that tell the launcher."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a launcher asks of the processes of its program."""

    folder: Path
    """Where they tell how it went."""
    threads: int | None = None
    measures: bool = False
    """Whether process groups are measured: a run that is not recorded has no manifest for it."""

    def to_environment(self) -> dict[str, str]:
        """The one variable that the processes need."""
        wish = {"folder": str(self.folder), "threads": self.threads, "measures": self.measures}
        return {VARIABLE: json.dumps(wish)}


def asked(environment: Mapping[str, str]) -> Asked | None:
    """What is asked of this process. Raises ContractError if it cannot be read."""
    text = environment.get(VARIABLE)
    if not text:
        return None
    try:
        given = json.loads(text)
        threads = given["threads"]
        return Asked(
            Path(given["folder"]),
            None if threads is None else int(threads),
            bool(given["measures"]),
        )
    except (ValueError, TypeError, KeyError):
        raise ContractError(
            f"{VARIABLE} is not what `bitstep run --deterministic` writes there: unset it"
        ) from None


class Inside:
    """One process of the program."""

    def __init__(self, wish: Asked) -> None:
        self.wish = wish
        self.enforced = Enforced(wish.threads)

    def tell(self, word: str, text: str) -> None:
        """Leave a file for the launcher; nothing where its folder is gone."""
        try:
            (self.wish.folder / f"{word}-{os.getpid()}").write_text(text)
        except OSError:
            return

    def end(self) -> None:
        """Look at the settings again, and tell."""
        if drifted := self.enforced.drift():
            self.tell(DRIFTED, told(drifted))
            say(told(drifted))


_inside: list[Inside] = []
"""The one of this process, once torch was about to be imported."""


def before() -> None:
    """Hold the variables: torch is about to be imported. Raises SystemExit where that cannot be."""
    try:
        wish = asked(os.environ)
        if wish is None:
            return
        if not _inside:  # else an import of torch has failed before
            _inside.append(Inside(wish))
        _inside[0].enforced.variables()
    except BitstepError as error:
        _refuse(error)


def after() -> None:
    """Hold torch's settings: it is imported. Raises SystemExit where that cannot be."""
    for inside in _inside:
        try:
            inside.enforced.settings()
        except BitstepError as error:
            _refuse(error)
        if inside.wish.measures:
            # Here, because it needs NumPy, whose libraries read variables when they are loaded.
            from bitstep.contract.groups_follow import follow_groups

            follow_groups()
        inside.tell(HELD, "")
        atexit.register(inside.end)


def _refuse(error: BitstepError) -> NoReturn:
    say(str(error))
    for inside in _inside:
        inside.tell(REFUSED, str(error))
    sys.exit(2)


def say(line: str) -> None:
    """One line on stderr; nothing where that is gone."""
    try:
        os.write(2, f"bitstep: {line}\n".encode("utf-8", "replace"))
    except OSError:
        return
