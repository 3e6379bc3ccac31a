"""`bitstep record`."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bitstep.cli.habits import level as verbosity
from bitstep.cli.habits import version
from bitstep.cli.output import say
from bitstep.cli.run import DETERMINISTIC, THREADS, concluded
from bitstep.errors import UsageError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bitstep.launch.recorded import Recorded
    from bitstep.observe.options import RecordOptions


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@click.option(
    "-o",
    "--output",
    "run",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the recording, which must not hold one; runs/NAME-N by default, NAME being "
    "that of the script. Example: -o runs/a",
)
@click.option(
    "--level",
    type=click.Choice(["step", "phase", "module", "op"]),
    default="op",
    show_default=True,
    help="How much to record: roots and metrics, each tensor of the state, what goes through each "
    "module, or each operation. Example: --level phase",
)
@click.option(
    "--steps",
    metavar="FIRST:LAST",
    help="Record these optimizer steps at that level, without the last, as a slice has it, and the "
    "others at level step. Counted from 1. Example: --steps 10:20",
)
@click.option(
    "--ranks", metavar="N,N", help="Record these ranks only, from 0. Example: --ranks 0,3"
)
@click.option(
    "--modules",
    metavar="GLOB,GLOB",
    help="Record modules and operations of these modules only. Example: --modules 'layers.3.*'",
)
@click.option(
    "--budget",
    metavar="BYTES",
    help="What each process may write; when it is spent less is recorded, then nothing, and the "
    "trace says so. Example: --budget 2GB",
)
@click.option(
    "--rehash",
    is_flag=True,
    help="Hash every input of every operation again, where a digest would be carried from the "
    "last hash of the same tensor. Example: --rehash",
)
@click.option(
    "--strict",
    is_flag=True,
    help="End the program when recording fails, and end with status 2 when the recording is not "
    "whole. Example: --strict",
)
@click.option(
    "--check-inert",
    is_flag=True,
    help="Show that recording changes nothing: run the program bare, bare again, recorded, and "
    "recorded in another rhythm, and compare the state after each step. Exit status 0, 1 where it "
    "changes something, 2 where the program varies by itself. Example: --check-inert",
)
@click.option("--deterministic", is_flag=True, help=DETERMINISTIC)
@click.option("--threads", type=click.IntRange(min=1), help=f"{THREADS} With --deterministic.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Tell the end as one JSON object, on stderr: stdout is the program's. Example: --json",
)
@verbosity
@version
def record(
    command: tuple[str, ...],
    run: Path | None,
    level: str,
    steps: str | None,
    ranks: str | None,
    modules: str | None,
    budget: str | None,
    rehash: bool,
    strict: bool,
    check_inert: bool,
    deterministic: bool,
    threads: int | None,
    as_json: bool,
) -> int:
    """Run COMMAND, any program, and record its training, without an edit.

    Every Python that COMMAND starts is attached: torchrun and its workers, the children of
    mp.spawn. Its streams are its own, signals are passed on, and its exit status is that of this
    command: 128 + the signal where one ended it. Errors of ours before it starts end with 2.

    Example: bitstep record -o runs/a -- python train.py
    """
    from bitstep.observe.options import RecordOptions

    if threads is not None and not deterministic:
        raise UsageError("--threads is for --deterministic: give both, or set OMP_NUM_THREADS")
    options = RecordOptions.parse(
        # What is wrong with an option is said before a directory is made.
        run or Path("runs"), level, steps, ranks, modules, budget, rehash, strict
    )  # fmt: skip
    record_ = partial(_record, options, command, run is None, check_inert, as_json)
    return _held(record_, threads) if deterministic else record_()


def _held(record: Callable[[], int], threads: int | None) -> int:
    from bitstep.launch.deterministic import deterministic_children, look

    with deterministic_children(threads, measures=True) as folder:
        status = record()
        told = look(folder)
        return concluded(status, told.line(), told.is_whole)


def _record(
    options: RecordOptions, command: tuple[str, ...], is_new: bool, check_inert: bool, as_json: bool
) -> int:
    from bitstep.launch.record import new_directory, record_command

    make = new_directory if is_new else None
    if check_inert:
        return _check_inert(options, command, as_json, make)
    ended = record_command(options, command, make)
    if ended.speaks:
        _tell(ended.recorded, as_json)
    if options.strict and ended.recorded.missing and not ended.exit:
        return 2
    return ended.exit


def _check_inert(
    options: RecordOptions,
    command: tuple[str, ...],
    as_json: bool,
    make: Callable[[Sequence[str]], Path] | None,
) -> int:
    from bitstep.investigate.inert import check_inert
    from bitstep.report.inert import inert_text

    if make is not None:
        options = replace(options, directory=make(command))
    found = check_inert(options, command)
    say(json.dumps(found.as_json()) if as_json else inert_text(found.as_json()))
    return int(found.verdict.outcome)


def _tell(recorded: Recorded, as_json: bool) -> None:
    # stderr is the program's as well: one line, when it has ended.
    level = logging.ERROR if recorded.missing else logging.INFO
    if as_json:
        say(json.dumps({**asdict(recorded), "run": str(recorded.run)}))
    elif logging.getLogger("bitstep").isEnabledFor(level):
        say(f"bitstep: {printable(recorded.line())}")
