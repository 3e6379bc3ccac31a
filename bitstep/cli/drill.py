"""`bitstep drill`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bitstep.cli.habits import habits, show
from bitstep.cli.output import table

if TYPE_CHECKING:
    from bitstep.observe.options import Level

logger = logging.getLogger("bitstep")

HEAD = ("kind", "injected", "null", "found", "named exactly", "not named", "missed")


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@click.option(
    "-o",
    "--output",
    "folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the drill; one that was begun goes on. Example: -o runs/drill",
)
@click.option(
    "--faults",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="How many faults with an effect. Example: --faults 300",
)
@click.option(
    "--seed", default=0, show_default=True, help="Seed of the draw of faults. Example: --seed 7"
)
@click.option(
    "--level",
    type=click.Choice(["step", "phase", "module", "op"]),
    default="op",
    show_default=True,
    help="Level of the recordings; above op no operation can be named. Example: --level step",
)
@click.option(
    "--rehash",
    is_flag=True,
    help="Record with every input hashed again, which names stray writes. Example: --rehash",
)
@click.option(
    "--together",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Runs side by side. Example: --together 4",
)
@click.option(
    "--warm",
    is_flag=True,
    help="Fork the runs of `python SCRIPT.py` from a process that has torch imported: much faster. "
    "Example: --warm",
)
@click.option("--keep", is_flag=True, help="Keep every recording. Example: --keep")
@habits
def drill(
    command: tuple[str, ...],
    folder: Path,
    faults: int,
    seed: int,
    level: Level,
    rehash: bool,
    together: int,
    warm: bool,
    keep: bool,
    as_json: bool,
) -> int:
    """Flip bits in COMMAND, one a run, and see whether comparing recordings finds and names each.

    Half of the faults are in what an operation writes, half are stray writes between operations:
    to a parameter, a gradient, a moment or an output. "{run}" in COMMAND is a folder of each run.

    Status 0: all were found and named. 1: one was not. Each has a line in faults.jsonl.

    Example: bitstep drill -o runs/drill --faults 20 -- python train.py
    """
    from bitstep.investigate.drill import drill as library

    drilled = library(
        command,
        folder,
        faults=faults,
        seed=seed,
        level=level,
        rehash=rehash,
        together=together,
        warm=warm,
        keep=keep,
        said=_said,
    )
    counts = drilled.counts
    rows = drilled.table()
    kinds = [dict(zip(HEAD, row, strict=True)) for row in rows]
    unnamed = [line for line in drilled.lines if line["outcome"] in ("unnamed", "missed")]
    lines = [*table(HEAD, rows), *map(_told, unnamed)]
    show({"folder": str(folder), **counts, "kinds": kinds}, lines, as_json)
    return int(bool(counts["unnamed"] or counts["missed"]))


def _said(line: dict[str, Any]) -> None:
    logger.info("%s (%.1f s)", _told(line), line["seconds"])


def _told(line: dict[str, Any]) -> str:
    return f"fault {line['number']}, {line['kind']}: {line['outcome']}: {line['why']}"
