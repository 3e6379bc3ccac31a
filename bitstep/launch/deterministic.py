"""`bitstep run --deterministic -- COMMAND`: any program, held to the rules from before it starts.

1. The variables of the rules are set for the program: before any import, in every process of it.
   A value that the user chose and no rule accepts is refused, and nothing is started.
2. Our bootstrap stands first in PYTHONPATH: every Python of the program holds torch's settings
   right behind `import torch`, and looks at them again when it ends (`contract.inside`).
3. Each process tells in a folder of ours how it went. A setting that drifted, and a program of
   which no process could be held, make a success into status 2: it could not be told.

>>> environment(2, {"NCCL_ALGO": "CollnetChain"})["OMP_NUM_THREADS"]
'2'
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bitstep.contract.enforce import refuse
from bitstep.contract.inside import DRIFTED, HELD, REFUSED, Asked, asked
from bitstep.contract.rule import check_threads
from bitstep.contract.rules import VARIABLES
from bitstep.contract.standing import standings
from bitstep.launch import versions
from bitstep.launch.program import find_program, run_program
from bitstep.launch.record import with_bootstrap


@dataclass(frozen=True, slots=True)
class Told:
    """What the processes of a program told, as far as they came to their `import torch`."""

    held: int
    """Processes that were held to the rules."""
    drifted: int
    """Of these, processes in which a setting was another at the end."""
    refused: int
    """Processes that could not be held, and ended."""

    @property
    def is_whole(self) -> bool:
        """Whether the program was held to the rules, to its end."""
        return self.held > 0 and not self.drifted and not self.refused

    def line(self) -> str:
        """What is missing, without `bitstep:`; empty where nothing is."""
        if self.is_whole:
            return ""
        if not self.held and not self.refused:
            return (
                "unverified: no process imported torch under the rules: none did, or it was "
                "started with -I, -E or -S, or with another PYTHONPATH"
            )
        parts = [f"{self.refused} refused"] * bool(self.refused)
        parts += [f"{self.drifted} drifted"] * bool(self.drifted)
        return f"unverified: of {self.held + self.refused} processes {' and '.join(parts)}"


def run_deterministic(command: Sequence[str], threads: int | None) -> tuple[int, Told]:
    """Run the command to its end; its exit status, and what its processes told.

    Raises UsageError and ContractError before it starts.
    """
    file = find_program(command[0])
    with deterministic_children(threads) as folder:
        variables = with_bootstrap(os.environ) | versions.handed_over(command)
        status = run_program(file, command, variables)
        return status, look(folder)


@contextmanager
def deterministic_children(threads: int | None, measures: bool = False) -> Iterator[Path]:
    """Have every program that is started within held to the rules; gives the folder for `look`.

    `measures`: have its process groups measured for the manifest, which takes collectives.

    Changes the environment of this process, for as long as that. Raises UsageError, ContractError.
    """
    before = dict(os.environ)
    outer, made = asked(before), environment(threads, before)
    with tempfile.TemporaryDirectory(prefix="bitstep-") as folder:
        os.environ.update({**made, **Asked(Path(folder), threads, measures).to_environment()})
        try:
            yield Path(folder)
        finally:
            os.environ.clear()
            os.environ.update(before)
            _pass_on(Path(folder), outer)


def _pass_on(folder: Path, outer: Asked | None) -> None:
    """Tell a launcher that has started this one what the processes told."""
    if outer is not None:
        with suppress(OSError):  # it has gone
            shutil.copytree(folder, outer.folder, dirs_exist_ok=True)


def environment(threads: int | None, base: Mapping[str, str]) -> dict[str, str]:
    """`base`, with each variable that a rule fills and nobody set.

    Raises ContractError where `base` breaks a rule, UsageError for threads that cannot be.
    """
    check_threads(threads)
    found = standings(VARIABLES, threads, base)
    refuse(found)
    values = {each.rule.name: each.rule.value(threads) for each in found if each.verdict == "unset"}
    return {**base, **{name: value for name, value in values.items() if value is not None}}


def look(folder: Path) -> Told:
    """What the processes left in the folder."""
    words = [name.partition("-")[0] for name in os.listdir(folder)]
    return Told(*(words.count(word) for word in (HELD, DRIFTED, REFUSED)))
