"""`bitstep prove`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bitstep.cli.habits import habits, numbers, show
from bitstep.cli.output import put, table
from bitstep.cli.screen import working

if TYPE_CHECKING:
    from bitstep.investigate.arms import ArmReport

logger = logging.getLogger("bitstep")


@click.command()
@click.argument("recipe")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=24,
    show_default=True,
    help="Steps of each arm. Example: --steps 40",
)
@click.option(
    "--processes",
    default="1,2,4",
    show_default=True,
    callback=numbers,
    metavar="W,W,...",
    help="Numbers of processes that must agree; the first is the reference. "
    "Example: --processes 1,2",
)
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the arms and of certificate.json; runs/RECIPE-proof by default. "
    "Example: -o runs/proof",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Replace a value of the recipe in every arm; may be repeated. "
    "Example: --set run.precision=bfloat16",
)
@click.option(
    "--fault",
    metavar="NAME",
    help="Take one guarantee away in every arm, to see it refuted. Example: --fault left-fold",
)
@habits
def prove(
    recipe: str,
    steps: int,
    processes: tuple[int, ...],
    folder: Path | None,
    changes: tuple[str, ...],
    fault: str | None,
    as_json: bool,
) -> int:
    """Prove what is promised of RECIPE, with controls.

    The guarantees are repeatability, exact resume and layout freedom, each by arms in fresh
    processes. The controls are arms that must be caught: each restores all but one stream.

    Status 0 proven, 1 refuted, 2 unverified: an arm or a control failed to answer. With one number
    of processes layout freedom is not tried, and the result says so. With -v it names the arms.

    Example: bitstep prove nano --processes 1,2,4 -o runs/proof
    """
    from bitstep.investigate.prove import prove as library

    target = folder or Path("runs") / f"{Path(recipe).stem}-proof"
    with working(f"proving {recipe}"):
        certificate = library(
            recipe,
            processes=processes,
            steps=steps,
            folder=target,
            changes=changes,
            fault=fault,
            said=_said,
        )
    verdict = certificate.verdict
    if as_json:
        put(certificate.to_json().removesuffix("\n"))
        return int(verdict.outcome)
    lines = table(
        ("name", "outcome", "detail"),
        [(f.name, f.outcome, f.detail) for f in (*certificate.guarantees, *certificate.controls)],
    )
    if logger.isEnabledFor(logging.DEBUG):
        arms = [(arm.name, str(arm.processes), f"{arm.seconds:.1f}") for arm in certificate.arms]
        lines += ["", *table(("arm", "processes", "seconds"), arms)]
    show(None, [*lines, "", f"{verdict.title}: {target / 'certificate.json'}"], as_json=False)
    return int(verdict.outcome)


def _said(report: ArmReport) -> None:
    note = f", {report.note}" if report.note else ""
    logger.info("%s: status %d, %.1f s%s", report.name, report.exit, report.seconds, note)
