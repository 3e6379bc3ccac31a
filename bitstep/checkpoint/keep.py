"""Which checkpoints to use and which to remove.

path, skipped = newest(run / "checkpoints")
prune(run / "checkpoints", keep_last=2, keep_every=1000)
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from bitstep.checkpoint.disk import sync, writing
from bitstep.checkpoint.format import MARKER, step_of
from bitstep.checkpoint.verify import verify
from bitstep.errors import CheckpointError


def newest(root_dir: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest checkpoint that verifies, and each newer one with the reason it was skipped.

    Temporary folders are not looked at. None where nothing verifies, or nothing is there.
    """
    skipped = []
    for path in reversed(_steps(Path(root_dir))):
        try:
            verify(path)
        except CheckpointError as error:
            skipped.append((path, str(error)))
        else:
            return path, skipped
    return None, skipped


def prune(root_dir: Path, keep_last: int, keep_every: int = 0) -> list[Path]:
    """Remove complete checkpoints and return their paths; on one process only.

    The `keep_last` newest complete ones stay (at least one), and every step that `keep_every`
    divides (0: none). What has no marker is left for the next save. Raises CheckpointError where
    one cannot be removed.
    """
    if keep_last < 1 or keep_every < 0:
        raise CheckpointError(
            f"keep_last is {keep_last} and keep_every {keep_every}; use at least 1 and 0"
        )
    complete = [path for path in _steps(Path(root_dir)) if (path / MARKER).is_file()]
    removed = []
    for path in complete[:-keep_last]:
        step = step_of(path.name)
        assert step is not None
        if not keep_every or step % keep_every:
            try:
                discard(path)
            except OSError as error:
                raise CheckpointError(f"cannot remove {path}: {error.strerror}") from None
            removed.append(path)
    return removed


def set_aside(checkpoint: Path) -> Path:
    """Give a checkpoint that does not verify another name, `damaged-step-...`, and return it.

    It is kept for whoever looks for the cause. Under its own name it would take the place of a
    good one when old ones are removed, and stand in the way when its step is saved again.
    """
    aside = checkpoint.with_name(f"damaged-{checkpoint.name}.{secrets.token_hex(4)}")
    writing(checkpoint, lambda: checkpoint.rename(aside))
    return aside


def discard(checkpoint: Path) -> None:
    """Remove a checkpoint, the marker first: a removal that is cut leaves nothing promised."""
    (checkpoint / MARKER).unlink(missing_ok=True)
    sync(checkpoint)
    shutil.rmtree(checkpoint)


def _steps(root_dir: Path) -> list[Path]:
    """The folders that are named like checkpoints, oldest first."""
    found = [(step_of(name), name) for name in os.listdir(root_dir)] if root_dir.is_dir() else []
    return [root_dir / name for step, name in sorted(f for f in found if f[0] is not None)]
