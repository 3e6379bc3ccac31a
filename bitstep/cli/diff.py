"""`bitstep diff`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from bitstep.cli.habits import habits
from bitstep.cli.output import put
from bitstep.cli.screen import working


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--all-ranks",
    is_flag=True,
    help="Look at the metrics of every rank, and list every rank that differs. "
    "Example: --all-ranks",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Read every byte, and take any gap for could not tell. Example: --strict",
)
@habits
def diff(a: Path, b: Path, all_ranks: bool, strict: bool, as_json: bool) -> int:
    """Name the first record where the runs A and B part, and why. Needs no torch.

    Says what differs and where, since when the metrics show it, how sure that is, and what to do
    next. Status 0 the same, 1 different, 2 could not tell.

    Example: bitstep diff runs/a runs/b
    """
    from bitstep.diff import compare_runs
    from bitstep.report.difference import difference_json, difference_text

    with working(f"comparing {a} and {b}"):
        found = compare_runs(a, b, all_ranks=all_ranks, strict=strict)
    if as_json:
        put(json.dumps(difference_json(found), indent=2))
    else:
        put(difference_text(found, all_ranks))
    return int(found.outcome)
