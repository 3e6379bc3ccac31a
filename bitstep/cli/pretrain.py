"""`bitstep pretrain`."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bitstep.cli.habits import habits, level_words, show
from bitstep.cli.screen import Steps

if TYPE_CHECKING:
    from bitstep.launch.pretrain import Ended


@click.command()
@click.argument("recipe")
@click.option(
    "-o",
    "--output",
    "run",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the run; runs/RECIPE by default. Example: -o runs/first",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many processes do the work; the bits stay the same. Example: --processes 2",
)
@click.option(
    "--sums",
    type=click.Choice(["sharded", "whole"]),
    default="sharded",
    show_default=True,
    help="Where gradients are added up first: sharded over processes, with one reduction a "
    "microbatch, or whole on each process, with one a step and a whole gradient in memory. The "
    "bits stay the same. Example: --sums whole",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Replace a value of the recipe; may be repeated. On --resume this begins a branch. "
    "Example: --set optimizer.lr=0.001",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Short for --set run.steps=N. Example: --steps 40",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on from the newest checkpoint that verifies. Example: --resume",
)
@click.option(
    "--fault",
    metavar="NAME",
    default="",
    help="Take one guarantee away, to see it missed. Example: --fault left-fold",
)
@habits
def pretrain(
    recipe: str,
    run: Path | None,
    processes: int,
    sums: str,
    changes: tuple[str, ...],
    steps: int | None,
    resume: bool,
    fault: str,
    as_json: bool,
) -> int:
    """Train RECIPE: a name of `bitstep recipes`, or a TOML file.

    SIGTERM and SIGUSR1 save at the next step boundary and end with status 75; Ctrl-C does too,
    with status 130, and a second Ctrl-C ends at once.

    Also runs as a worker of torchrun, which ends with a status of its own, 1 for a stop as well,
    and dies of SIGUSR1 unless it is told to pass it on:

    \b
    torchrun --signals-to-handle SIGTERM,SIGUSR1,SIGINT --nproc-per-node 2 \\
      -m bitstep pretrain nano

    Example: bitstep pretrain nano -o runs/first --processes 2
    """
    from bitstep.launch.pretrain import Order, pretrain_command
    from bitstep.launch.torchrun import is_supervised

    order = Order(
        recipe=recipe,
        run=run or Path("runs") / Path(recipe).stem,
        processes=processes,
        changes=changes if steps is None else (*changes, f"run.steps={steps}"),
        resume=resume,
        fault=fault,
        whole_sums=sums == "whole",
        habits=level_words(),
    )
    screen = Steps()

    def tell(ended: Ended) -> None:
        screen.close()
        line = f"{ended.status} at step {ended.step}, state root {ended.root}, {order.run}"
        show({"run": str(order.run), **asdict(ended)}, [line], as_json)

    # A worker of our launcher leaves the answer to it.
    answer = None if is_supervised() else _acknowledge
    try:
        return pretrain_command(order, show=screen, tell=tell, on_signal=answer)
    finally:
        screen.close()


def _acknowledge(received: signal.Signals) -> None:
    # From a signal handler: a buffered stream may be in use by what was interrupted.
    if logging.getLogger("bitstep").isEnabledFor(logging.INFO):
        hint = "; again to end now" if received is signal.SIGINT else ""
        line = f"\nbitstep: {received.name}: stopping after this step{hint}\n"
        with contextlib.suppress(OSError):  # nobody may be listening any more
            os.write(2, line.encode())
