"""`bitstep doctor`."""

from __future__ import annotations

import json
import logging
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bitstep.cli.habits import habits
from bitstep.cli.output import put
from bitstep.cli.screen import working
from bitstep.errors import UsageError

if TYPE_CHECKING:
    from bitstep.investigate.doctor.diagnosis import Diagnosis

logger = logging.getLogger("bitstep")


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the recordings and the program's output there, in a new directory. "
    "Example: -o runs/look",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="Seconds for each execution of COMMAND. Example: --timeout 1800",
)
@habits
def doctor(command: tuple[str, ...], folder: Path | None, timeout: float, as_json: bool) -> int:
    """Say what can change bits: of this machine, or in the first two steps of COMMAND.

    COMMAND is run a few times, each time to the end of its second step on all ranks, and then
    stopped. It does what it does: give it a folder of its own, "{run}", if it writes. Every
    operation that ran is looked up in the catalog, under the settings that were in force. -v shows
    all of it.

    Status 0: nothing varies. 1: something can change bits. 2: it could not be told.

    Example: bitstep doctor -- python train.py
    """
    from bitstep.report.doctor import doctor_text

    if folder is not None and not command:
        raise UsageError("-o keeps recordings: give the command that makes them")
    diagnosis = _examine(command, folder, timeout)
    if as_json:
        put(json.dumps(diagnosis.as_json(), indent=2))
    else:
        put(doctor_text(diagnosis.as_json(), full=logger.isEnabledFor(logging.DEBUG)))
    return int(diagnosis.outcome)


def _examine(command: tuple[str, ...], folder: Path | None, timeout: float) -> Diagnosis:
    if not command:
        from bitstep.investigate.doctor.machine import examine_machine

        with working("looking at this machine"):
            return examine_machine()
    from bitstep.investigate.doctor.program import examine_program

    with ExitStack() as stack:
        stack.enter_context(working(f"looking at {command[0]}"))
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bitstep-")))
        return examine_program(command, folder, timeout=timeout)
