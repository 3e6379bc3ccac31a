"""Where words go: results to stdout, everything else to stderr, and what happens when one is gone.

1. `put` prints a result. When its reader has gone (`| head`) nobody wants the rest: no error.
2. `say` prints anything else. When stderr is gone the command goes on in silence: a training of
   days does not end because a terminal closed or `head` had enough.
3. `open_missing` opens a stream that was closed before we were started (`>&-`).
4. `table` lays out rows.

>>> put("proven")
proven
"""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import click

WIDTH = 100
"""Columns of a table, where its words allow it."""


def put(text: str) -> None:
    """Print a result on stdout. Raises OSError if it cannot be written, as on a full disk."""
    try:
        click.echo(text)
    except OSError as error:
        silence(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise


def say(text: str) -> None:
    """Print on stderr, or nowhere."""
    try:
        click.echo(text, err=True)
    except OSError:
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Let what is written to this stream from now on, by whomever, go nowhere."""
    # What could not be written is still in the buffer: it goes there too.
    with contextlib.suppress(OSError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def open_missing() -> None:
    """Open the standard streams that were closed when this process started."""
    # In this order each takes its own number, the lowest that is free. Otherwise the next file
    # that is opened would take it, a checkpoint perhaps, and be written to as if it were stderr.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode)  # noqa: SIM115  # open as long as the process
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; the last column is wrapped where it is wide."""
    widths = [max(map(len, column)) for column in zip(*[head, *rows], strict=True)][:-1]
    indent = sum(widths) + 2 * len(widths)
    lines = []
    for *cells, last in (head, *rows):
        start = "".join(f"{cell:{width}}  " for cell, width in zip(cells, widths, strict=True))
        first, *others = _wrapped(last, WIDTH - indent)
        lines += [(start + first).rstrip(), *(" " * indent + other for other in others)]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    # A word with hyphens may be an option, to be copied whole.
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
