"""`bitstep recipes`."""

from __future__ import annotations

import click

from bitstep.cli.habits import habits, show


@click.command()
@habits
def recipes(as_json: bool) -> int:
    """List the recipes in the package.

    Example: bitstep recipes
    """
    from bitstep.train.recipe import names

    show(names(), names(), as_json)
    return 0
