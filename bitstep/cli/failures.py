"""From an exception to one line on stderr and an exit status. Tracebacks only with -v.

    a user's mistake, a missing package, a full disk   2, what happened and what to do
    Ctrl-C                                             130
    the reader of a pipe is gone                       0
    a mistake of ours                                  2, and how to see where

A worker of our launcher writes its line to the launcher instead, which tells each cause once.
"""

from __future__ import annotations

import errno
import logging
import sys
import traceback

import click

from bitstep.cli.output import say, silence
from bitstep.errors import BitstepError, printable
from bitstep.launch.signals import INTERRUPTED
from bitstep.launch.torchrun import is_supervised, is_worker, write_error

logger = logging.getLogger("bitstep")

EXTRAS = {
    "torch": "torch",
    "numba": "torch",
    "tokenizers": "data",
    "torchao": "quantized",
    "xxhash": "bench",
}
"""Which optional part of the package brings what."""


def status_of(error: BaseException) -> int:
    """Tell the user what the exception means; returns the exit status."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        start = "\n" if sys.stderr.isatty() else ""  # after the ^C
        say(f"{start}bitstep: interrupted")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # Of --help: `put` lets no other pass. Else the interpreter complains at its end.
        silence(sys.stdout)
        return 0
    _tell(error)
    return 2


def _tell(error: BaseException) -> None:
    line, is_user_error = describe(error)
    if is_worker():
        write_error(line, is_user_error)
    if not is_supervised():
        say(f"bitstep: {printable(line)}")
    if logger.isEnabledFor(logging.DEBUG):
        say("".join(traceback.format_exception(error)).rstrip("\n"))


def describe(error: BaseException) -> tuple[str, bool]:
    """The line for a person, and whether the user can do something about it."""
    if isinstance(error, BitstepError):
        return _one_line(str(error)), True
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx else "bitstep"
        message = _one_line(error.format_message())
        stop = "" if message.endswith((".", "?")) else "."
        return f"{message}{stop} See {where} --help.", True
    if isinstance(error, click.ClickException):
        return _one_line(error.format_message()), True
    if isinstance(error, ModuleNotFoundError) and (error.name or "") in EXTRAS:
        extra = EXTRAS[error.name or ""]
        return f"{error.name} is not installed: pip install 'bitstep[{extra}]'", True
    if isinstance(error, OSError) and error.strerror:
        named = f"{error.filename}: " if error.filename else ""
        hint = "; make room, then add --resume" if error.errno == errno.ENOSPC else ""
        return f"{named}{error.strerror}{hint}", True
    cause = _one_line(f"{type(error).__name__}: {error}")
    return f"{cause}; this is a mistake in bitstep, -v shows where", False


def _one_line(text: str) -> str:
    return " ".join(text.split())
