"""`bitstep compile`."""

from __future__ import annotations

import json

import click

from bitstep.cli.habits import habits
from bitstep.cli.output import put
from bitstep.cli.screen import working


@click.command(name="compile")
@habits
def compile_(as_json: bool) -> int:
    """Make recording operations cheaper: compile a part of bitstep, once.

    With it `record --level op` costs about two thirds; the rows are the same. It needs a C++
    compiler and ninja, takes about 20 seconds, and is for the torch and the Python that are
    installed now: in an image, do it after them. Without it everything works as well. A program
    that is recorded never compiles anything.

    Status 0: it is there. 2: it could not be compiled.

    Example: bitstep compile
    """
    from bitstep.launch.native import compile_operations

    with working("compiling"):
        place = compile_operations()
    put(json.dumps({"file": str(place)}, indent=2) if as_json else f"compiled: {place}")
    return 0
