"""`bitstep run`."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from bitstep.cli.habits import level, version
from bitstep.cli.output import say
from bitstep.errors import UsageError

DETERMINISTIC = (
    "Hold every process of COMMAND to the rules of docs/contract.md, from before Python starts. "
    "Example: --deterministic"
)
THREADS = (
    "Threads of each process, for OpenMP, MKL and torch; by default what they take by themselves. "
    "Example: --threads 2"
)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@click.option("--deterministic", is_flag=True, help=DETERMINISTIC)
@click.option("--threads", type=click.IntRange(min=1), help=THREADS)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Tell the end as one JSON object, on stderr: stdout is the program's. Example: --json",
)
@level
@version
def run(command: tuple[str, ...], deterministic: bool, threads: int | None, as_json: bool) -> int:
    """Run COMMAND, any program, so that it can have the same bits again, without an edit.

    Its variables are set before it starts, torch's settings behind its `import torch`, in every
    Python that it starts. A value of yours that no rule accepts is refused. Its exit status is that
    of this command; where it ended well, but a setting had drifted or no process could be held to
    the rules, 2.

    Example: bitstep run --deterministic -- python train.py
    """
    from bitstep.launch.deterministic import run_deterministic

    if not deterministic:
        raise UsageError("bitstep run needs --deterministic: without it start the command itself")
    status, told = run_deterministic(command, threads)
    if as_json:
        say(json.dumps({**asdict(told), "is_whole": told.is_whole, "exit": status}))
    return concluded(status, "" if as_json else told.line(), told.is_whole)


def concluded(status: int, missing: str, is_whole: bool) -> int:
    """The exit status of a program that was held to the rules, and a line where it was not."""
    if missing:
        say(f"bitstep: {missing}")
    return status if is_whole else status or 2
