"""`bitstep record -- COMMAND`: run any program so that every Python in it attaches the recorder.

1. The run directory is taken, for one recording only; `recording.json` says what was asked for.
2. The program starts with our bootstrap first in PYTHONPATH and the options in its environment;
   nothing else of it is touched, and nothing of its source.
3. At its end, what its processes wrote is counted, and what they should have written is missed.

Several launchers may record together, one a rank (`srun bitstep record -o DIR -- ...`): the first
takes the directory, and the others of the same launch join it.

    ended = record_command(RecordOptions(Path("runs/a")), ["python", "train.py"])
    ended.exit, ended.recorded.line()
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

from bitstep.contract.program import without_secrets
from bitstep.errors import RunError, UsageError
from bitstep.launch import versions
from bitstep.launch.program import find_program, run_program
from bitstep.launch.recorded import Recorded, look
from bitstep.observe.attempt import RESTARTS, claims, launch_id
from bitstep.observe.options import RecordOptions

BOOTSTRAP: Final = Path(__file__).parents[1] / "observe" / "bootstrap"
NAME: Final = "recording.json"
FORMAT: Final = 1
RANKS: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Variables that hold the rank of this process where a launcher started it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a recorded program ended, and what there is of it."""

    exit: int
    """Exit status of the program; 128 + the signal that ended it."""
    recorded: Recorded
    speaks: bool
    """Whether this launcher is the one to tell; false for all but rank 0 of several."""


def record_command(
    options: RecordOptions,
    command: Sequence[str],
    make_directory: Callable[[Sequence[str]], Path] | None = None,
) -> Ended:
    """Run the command and record it. Raises UsageError and RunError before it starts.

    Args:
        options: where and what to record; the directory must not hold a recording.
        command: the words of the program.
        make_directory: gives a directory that takes the place of the one in the options.
    """
    file = find_program(command[0])
    rank = launcher_rank(os.environ)
    if make_directory is not None:
        options = replace(options, directory=make_directory(command))
    take(options, command, rank)
    variables = environment(options, os.environ) | versions.handed_over(command)
    status = run_program(file, command, variables)
    return Ended(status, look(options.directory, options.ranks), speaks=not rank)


def environment(options: RecordOptions, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of the program: `base`, our options, and the bootstrap in front."""
    return {**with_bootstrap(base), **options.to_environment()}


def with_bootstrap(base: Mapping[str, str]) -> dict[str, str]:
    """`base`, with the folder of our bootstrap first in PYTHONPATH."""
    others = [
        entry
        for entry in base.get("PYTHONPATH", "").split(os.pathsep)
        if entry != str(BOOTSTRAP)  # recorded from within a recorded program
    ]
    # An empty entry means the current folder, but an empty variable means none.
    path = os.pathsep.join([str(BOOTSTRAP), *([] if others == [""] else others)])
    return {**base, "PYTHONPATH": path}


def launcher_rank(variables: Mapping[str, str]) -> int | None:
    """The rank that a launcher gave to this process; None without one."""
    for name in RANKS:
        if variables.get(name, "").isdecimal():
            return int(variables[name])
    return None


def new_directory(command: Sequence[str], root: Path = Path("runs")) -> Path:
    """Make runs/NAME-1, or the next that is free; NAME is the script's, module's or program's."""
    if launcher_rank(os.environ) is not None:
        raise UsageError("one of several launchers: give them one directory with -o")
    name = re.sub(r"[^\w.-]", "_", program_name(command))
    for number in count(1):
        try:
            (found := root / f"{name}-{number}").mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(f"{root}: {error.strerror}: name a directory with -o") from None
        return found
    raise AssertionError("numbers do not end")


def program_name(command: Sequence[str]) -> str:
    """What to call a run of this command.

    >>> program_name(["torchrun", "--nproc-per-node", "2", "src/train.py", "--run", "a"])
    'train'
    """
    for word in command:
        if word.endswith(".py"):
            return Path(word).stem
    if "-m" in command[:-1]:
        return command[command.index("-m") + 1]
    return Path(command[0]).name if command else "run"


def take(options: RecordOptions, command: Sequence[str], rank: int | None) -> None:
    """Make the directory that of this recording. Raises RunError if it is another's."""
    run = options.directory
    asked = json.loads(next(iter(options.to_environment().values())))
    said = {
        "format": FORMAT,
        "command": without_secrets(command),
        "options": asked,
        "launch": launch_id(os.environ),
    }
    try:
        run.mkdir(parents=True, exist_ok=True)
        held = [name for name in os.listdir(run) if name.startswith(("attempt-", "manifest."))]
        with (run / NAME).open("x") as file:
            if held:
                raise FileExistsError
            file.write(json.dumps(said, indent=1) + "\n")
    except FileExistsError:
        if rank is None or not _is_same_launch(run, rank, said["launch"]):
            raise RunError(
                f"{run} holds a recording or a run: name another directory with -o"
            ) from None
    except OSError as error:
        raise RunError(f"{run}: {error.strerror}: name another directory with -o") from None


def _is_same_launch(run: Path, rank: int, launch: Any) -> bool:
    """Whether another launcher of ours took the directory, and this rank has not been there."""
    try:
        other = json.loads((run / NAME).read_bytes())["launch"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    is_restart = os.environ.get(RESTARTS, "0") != "0"
    was_here = rank in claims(run / "attempt-000")
    return bool(other == launch and (is_restart or not was_here))
