"""A process that bitstep started runs the same code, and ends with the process that started it.

1. The starter puts its process id into BITSTEP_PARENT; the started process asks the kernel, first
   thing, to be killed when that process is gone. Linux only; elsewhere nothing is asked.
2. `interpreter` is the Python of this process, told not to import from the current folder, which
   may hold a `random.py` of its own: the console script does not look there, `python -m` would.

>>> child_environment()["BITSTEP_PARENT"] == str(os.getpid())
True
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

VARIABLE = "BITSTEP_PARENT"
PR_SET_PDEATHSIG = 1


def interpreter() -> list[str]:
    """The first words of a command that runs our code in a process of its own."""
    home = Path(__file__).parents[2]
    # Run from a checkout that is not installed, the current folder is where we are.
    return [sys.executable] if home == Path.cwd() else [sys.executable, "-P"]


def child_environment() -> dict[str, str]:
    """What a started process needs in its environment to end with this one."""
    return {VARIABLE: str(os.getpid())}


def die_with_parent() -> None:
    """Have this process killed when its starter is gone; end at once if it already is.

    The kernel signals when the *thread* that started this process ends: start from one that stays.
    """
    starter = int(os.environ.get(VARIABLE, "0") or "0")
    if not starter or sys.platform != "linux":
        return
    if os.getppid() == starter:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have ended before the kernel was asked. A starter that lives and is not our parent
    # means that a program between us passed the variable on: then it is not about us.
    if os.getppid() != starter and not _is_alive(starter):
        os._exit(128 + signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
