"""A process that bitstep started runs the same code, and ends with the process that started it.

1. The starter puts its process id into BITSTEP_PARENT; the started process asks the kernel, first
   thing, to be killed when that process is gone. Linux only; elsewhere nothing is asked.
2. A torchrun that is not ours puts nothing there: its workers end with the process that started
   them. It can die without a word to them (SIGKILL, or SIGUSR1 unless it was told to handle it),
   and orphans would wait for each other and hold the lock of the run.
3. `interpreter` is the Python of this process, told not to import from the current folder, which
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
TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"
"""Set by every torchrun for its workers, and by nothing else: a worker that a shell started with
RANK and nohup must not end with that shell."""
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
    if sys.platform != "linux":
        return
    parent = os.getppid()
    starter = int(os.environ.get(VARIABLE, "0") or "0")
    if not starter and TORCHRUN_VARIABLE in os.environ:
        starter = parent
    if not starter:
        return
    if parent == starter:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        is_orphan = os.getppid() != starter  # it ended before the kernel was asked
    else:
        # A starter that lives and is not our parent means that a program between us passed the
        # variable on: then it is not about us.
        is_orphan = not _is_alive(starter)
    if is_orphan:
        os._exit(128 + signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
