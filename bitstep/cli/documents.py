"""`bitstep documents`."""

from __future__ import annotations

from pathlib import Path

import click

from bitstep.cli.habits import habits, show
from bitstep.cli.screen import working


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("step", type=click.IntRange(min=1))
@habits
def documents(run: Path, step: int, as_json: bool) -> int:
    """Print the documents that STEP of RUN was trained on, by logical rank.

    The corpus is read again, and must be the one of the run; the batches are made again, and must
    have the fingerprints that the step recorded.

    Example: bitstep documents runs/first 120
    """
    from bitstep.train.documents import documents_of

    with working(f"looking up step {step}"):
        named = documents_of(run, step)
    lines = [f"{rank:5}  {path}" for rank, paths in enumerate(named) for path in paths]
    show([list(paths) for paths in named], lines, as_json)
    return 0
