"""`bitstep check`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bitstep.cli.habits import habits
from bitstep.cli.output import put
from bitstep.cli.screen import working
from bitstep.errors import UsageError

if TYPE_CHECKING:
    from bitstep.check import Check, Finding

POLL = 0.5
"""Seconds between two looks at a run that goes on."""


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--follow",
    is_flag=True,
    help="Go on while the run does: print each finding as soon as its step is written, and end "
    "when all ranks have ended, or with Ctrl-C. Example: --follow",
)
@click.option(
    "--expect",
    metavar="OTHER",
    type=click.Path(path_type=Path),
    help="Compare each step with that of a recorded run as well. Example: --expect runs/a",
)
@click.option(
    "--stop",
    is_flag=True,
    help="With --follow: end with status 1 at the first finding. Example: --stop",
)
@habits
def check(run: Path, follow: bool, expect: Path | None, stop: bool, as_json: bool) -> int:
    """Check what was recorded of RUN against itself: is what should agree alike? Needs no torch.

    Compared are the replicas of ranks, what collectives gave, recomputation with its forward,
    and tensors with what was last written to them. Agreement is not correctness: ranks that agree
    can all be wrong.

    Example: bitstep check runs/b --follow
    """
    from bitstep.check import Check
    from bitstep.report.check import check_json, check_text

    if stop and not follow:
        raise UsageError("--stop ends --follow at the first finding: give it with --follow")
    checks = Check(run, expect)
    if follow:
        _follow(checks, stop, as_json)
    with working(f"checking {run}"):
        checked = checks.result()
    if as_json:
        # Of a run that is followed every line is an object: findings, then the answer.
        put(json.dumps(check_json(checked), indent=None if follow else 2))
    else:
        put(check_text(checked))
    return int(checked.outcome)


def _follow(checks: Check, stop: bool, as_json: bool) -> None:
    """Print what is found until the run has ended, or Ctrl-C."""
    try:
        ended = False
        while True:
            found = checks.advance()
            for finding in found:
                put(_line(finding, as_json))
            if ended or (stop and found):
                return
            # Seen to have ended, it is read once more: steps may have come in between.
            ended = checks.ended
            time.sleep(0 if ended else POLL)
    except KeyboardInterrupt:
        return


def _line(finding: Finding, as_json: bool) -> str:
    from bitstep.report.check import finding_json, finding_line

    return json.dumps(finding_json(finding)) if as_json else finding_line(finding)
