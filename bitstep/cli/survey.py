"""`bitstep survey`."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from bitstep.cli.habits import habits, show
from bitstep.cli.output import table
from bitstep.errors import UsageError

if TYPE_CHECKING:
    from bitstep.contract.survey import Difference, Report

logger = logging.getLogger("bitstep")


@click.command()
@click.argument("report", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the report, to compare or to send. Example: -o mine.json",
)
@click.option(
    "--compare",
    "other",
    type=click.Path(path_type=Path, dir_okay=False),
    help='Compare with this report; "shipped" is the one that comes with bitstep. '
    "Example: --compare shipped",
)
@click.option(
    "--ops",
    default="*",
    show_default=True,
    help="Measure only cases whose name or operation fits. Example: --ops 'index_put*'",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="What to measure. Example: --device cuda",
)
@habits
def survey(
    report: Path | None,
    output: Path | None,
    other: Path | None,
    ops: str,
    device: Literal["cpu", "cuda"],
    as_json: bool,
) -> int:
    """Measure which operations have other bits on this machine, and with what they vary.

    Repeats, thread counts, alignment, few rows, instruction sets; with and without PyTorch's
    deterministic flag. It takes minutes, less with --ops. With REPORT nothing is measured: that
    report is shown.

    Status 0: done, or like the other report. 1: not like it. 2: a report that cannot be read.

    Example: bitstep survey -o mine.json --compare shipped
    """
    from bitstep.contract.survey import differences
    from bitstep.contract.survey_file import read, shipped
    from bitstep.report.survey import HEAD, about, difference_lines, rows, summary

    if report is not None and (ops, device) != ("*", "cpu"):
        raise UsageError("--ops and --device are for measuring: leave them out, or REPORT")
    # Both of these before the minutes that measuring takes.
    if output is not None and not os.access(output if output.exists() else output.parent, os.W_OK):
        raise UsageError(f"{output} cannot be written: name another file with -o")
    theirs = None
    if other is not None:
        theirs = shipped() if str(other) == "shipped" else read(other)
    ours = read(report) if report is not None else _measured(device, ops)
    if output is not None:
        output.write_text(ours.text())
    words = about(ours)
    lines = [f"{words['machine']}; {words['versions']}", *table(HEAD, rows(ours)), summary(ours)]
    value = json.loads(ours.text())
    found: tuple[Difference, ...] = ()
    if theirs is not None:
        found = differences(ours, theirs)
        value["differences"] = [item._asdict() for item in found]
        lines += ["", *difference_lines(found)]
    show(value, lines, as_json)
    return int(bool(found))


def _measured(device: Literal["cpu", "cuda"], ops: str) -> Report:
    from bitstep.investigate.survey import survey as library

    return library(device, ops, logger.info)
