"""Run somebody else's command as if we were not there: its streams, its signals, its exit status.

1. It is started without a fork of ours and keeps every stream, open file and signal setting.
2. Signals that are sent to us are passed on. Those of the terminal are not: it sends them to the
   program as well, and a second Ctrl-C often means more than the first.
3. Its exit status is ours; of a program that a signal ended it is 128 + the signal, as in shells.

Linux only: elsewhere nothing says where a signal came from.

>>> run_program(find_program("true"), ["true"], dict(os.environ))
0
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bitstep.errors import RunError, UsageError

PASSED: Final = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
SI_KERNEL: Final = 0x80
"""`si_code` of a signal that the kernel sent, as it does for a key of the terminal."""
_CHANGED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these two for itself; the program gets them as they are by default."""


def find_program(word: str) -> str:
    """The file that a shell would run. Raises UsageError if there is none."""
    found = shutil.which(word)
    if found is not None:
        return found
    if Path(word).is_file():
        hint = "; put python before it" if word.endswith(".py") else ""
        raise UsageError(f"{word} is not a program that can be run{hint}")
    raise UsageError(f"{word}: no such command: see how it is spelled, or give its path")


def run_program(file: str, words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run it to its end; gives back the exit status. Raises UsageError if it cannot be started.

    Args:
        file: from `find_program`.
        words: the command line, its first word included.
        environment: all of it.

    Call it from the main thread of a process that has only one.
    """
    if sys.platform != "linux":
        raise RunError("programs are run on Linux only: nothing else says where a signal is from")
    waited_for = {*PASSED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    try:
        pid = os.posix_spawn(
            file, list(words), environment, setsigmask=before, setsigdef=_CHANGED_BY_PYTHON
        )
        return _wait(pid, waited_for)
    except OSError as error:
        raise UsageError(f"{file} cannot be started: {error.strerror}") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(pid: int, waited_for: set[signal.Signals]) -> int:
    while True:
        # It may have ended before: then its signal waits, or came before it was waited for.
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            exit_ = os.waitstatus_to_exitcode(status)
            return exit_ if exit_ >= 0 else 128 - exit_
        received = signal.sigwaitinfo(waited_for)
        if received.si_signo != signal.SIGCHLD and received.si_code != SI_KERNEL:
            os.kill(pid, received.si_signo)  # it is there, or its end is not yet collected
