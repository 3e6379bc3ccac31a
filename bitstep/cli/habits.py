"""What every verb has in common: -v, -q, --json, --version, where words go, and colour.

    @click.command()
    @habits
    def verb(as_json: bool) -> int:
        show(value, lines, as_json)
        return 0

Logs are lines on stderr, at INFO by default. Colour is left to rich, which honours NO_COLOR.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from bitstep.cli.output import put, say
from bitstep.errors import printable
from bitstep.version import __version__

Function = TypeVar("Function", bound=Callable[..., Any])

LEVELS = {"verbose": logging.DEBUG, "quiet": logging.ERROR}

logger = logging.getLogger("bitstep")

version = click.version_option(
    __version__,
    "--version",
    prog_name="bitstep",
    message="%(prog)s %(version)s",
    help="Print the version and end. Example: bitstep --version",
)


def _set_level(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    if given:
        logger.setLevel(LEVELS[str(parameter.name)])


def level(function: Function) -> Function:
    """Give a command -v and -q. Both stand before the verb or after it."""
    verbose = click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=_set_level,
        help="Say more on stderr, tracebacks included. Example: -v",
    )
    quiet = click.option(
        "-q",
        "--quiet",
        is_flag=True,
        expose_value=False,
        callback=_set_level,
        help="Say nothing on stderr but errors. Example: -q",
    )
    return verbose(quiet(function))


def habits(function: Function) -> Function:
    """Give a verb the shared options; it receives `as_json`."""
    as_json = click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print the result as JSON on stdout. Example: --json",
    )
    return level(as_json(version(function)))


def reset_level() -> None:
    """Start anew: INFO, to stderr."""
    if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
        logger.addHandler(_Stderr())
        logger.propagate = False
    logger.setLevel(logging.INFO)


class _Stderr(logging.Handler):
    """Writes to the stderr of the moment, which a test or a progress bar may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        say(f"bitstep: {printable(record.getMessage())}")


def level_words() -> tuple[str, ...]:
    """The -v or -q of this command, for the processes that it starts."""
    if logger.isEnabledFor(logging.DEBUG):
        return ("-v",)
    return () if logger.isEnabledFor(logging.INFO) else ("-q",)


def show(value: object, lines: Iterable[str], as_json: bool) -> None:
    """The result of a verb, on stdout: the value as JSON, or its lines.

    A name may hold anything, a line end too: it is escaped, so that a line stays a line.
    """
    put(json.dumps(value, indent=2) if as_json else "\n".join(map(printable, lines)))


def numbers(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Callback of an option whose value is different numbers from 1, separated by commas."""
    found: list[int] = []
    for word in text.split(","):
        if not (word.isascii() and word.isdecimal() and int(word) > 0):
            hint = "separate them by commas: 1,2,4"
            raise click.BadParameter(f"{word!r} is not a number from 1; {hint}")
        if int(word) in found:
            raise click.BadParameter(f"{word} is there twice")
        found.append(int(word))
    return tuple(found)
