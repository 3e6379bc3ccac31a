"""`bitstep log`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from bitstep.cli.habits import habits
from bitstep.cli.output import put
from bitstep.cli.screen import working


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@habits
def log(run: Path, as_json: bool) -> int:
    """Print each step of RUN: its state root and its metrics. Needs no torch.

    The newest step comes first. With --json it is one object a line, the oldest first.

    Example: bitstep log runs/first
    """
    from bitstep.report.terminal import log_json, log_text

    with working(f"reading {run}"):
        text = "\n".join(map(json.dumps, log_json(run))) if as_json else log_text(run)
    put(text)
    return 0
