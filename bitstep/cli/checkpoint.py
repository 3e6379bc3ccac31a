"""`bitstep checkpoint verify` and `bitstep checkpoint show`."""

from __future__ import annotations

from pathlib import Path

import click

from bitstep.cli.habits import habits, show
from bitstep.cli.screen import working
from bitstep.errors import UsageError

LISTED = 5
"""Most checkpoints that an error names."""
DIRECTORY = click.argument("directory", type=click.Path(path_type=Path))


@click.group(no_args_is_help=False)
def checkpoint() -> None:
    """Look at a checkpoint. Needs no model and no torch.

    Example: bitstep checkpoint verify runs/first/checkpoints/step-00000050
    """


@checkpoint.command("verify")
@DIRECTORY
@habits
def verify_verb(directory: Path, as_json: bool) -> int:
    """Read every byte of the checkpoint DIRECTORY and check it; status 2 if one is wrong.

    Example: bitstep checkpoint verify runs/first/checkpoints/step-00000050
    """
    from bitstep.checkpoint import verify

    _check_named(directory)
    with working(f"verifying {directory}"):
        report = verify(directory)
    root = f"{report.root:016x}"
    value = {
        "step": report.step,
        "root": root,
        "tensors": report.tensors,
        "files": report.files,
        "bytes": report.bytes,
    }
    line = (
        f"{directory}: step {report.step}, state root {root}, {report.tensors} tensors, "
        f"{report.files} files, {report.bytes} bytes: all as they were saved"
    )
    show(value, [line], as_json)
    return 0


@checkpoint.command("show")
@DIRECTORY
@habits
def show_verb(directory: Path, as_json: bool) -> int:
    """List the tensors of the checkpoint DIRECTORY with their fingerprints; reads no tensor.

    Example: bitstep checkpoint show runs/first/checkpoints/step-00000050
    """
    from bitstep.checkpoint import show as rows_of

    _check_named(directory)
    rows = rows_of(directory)
    width = max((len(row.tensor) for row in rows), default=0)
    lines = [
        f"{row.digest or '-':16}  {row.tensor:{width}}  {row.dtype} {list(row.shape)}"
        f"  {row.nbytes} bytes in {row.parts} parts"
        for row in rows
    ]
    show([row._asdict() for row in rows], lines, as_json)
    return 0


def _check_named(directory: Path) -> None:
    """Raises UsageError where a run, or nothing at all, was named in place of a checkpoint."""
    folder = directory / "checkpoints"
    if folder.is_dir():
        steps = sorted(path.name for path in folder.glob("step-*"))
        older = f" and {len(steps) - LISTED} older" if len(steps) > LISTED else ""
        held = f"{', '.join(steps[-LISTED:])}{older}" if steps else "none yet"
        raise UsageError(f"{directory} is a run: name a step of {folder}, which holds {held}")
    if not directory.exists():
        raise UsageError(
            f"{directory}: there is no such folder; name one of a step, as in "
            "runs/first/checkpoints/step-00000050"
        )
