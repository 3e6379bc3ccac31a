"""One attempt of a run: what its directory holds, and how an attempt opens and ends in it.

    RUN/manifest.json              every attempt, and what it must have in common with the others
    RUN/attempt-000/rank-00000.*   trace of each process
    RUN/attempt-000/end.json       the end marker, written last
    RUN/checkpoints/step-00000020/
    RUN/lock                       held while an attempt lives

Process 0 alone decides and writes; the others are told. Because of the lock, a requeued job cannot
write beside an attempt that is still there.

>>> attempt_folder(Path("runs/a"), 1), checkpoint_folder(Path("runs/a"), 20)
(PosixPath('runs/a/attempt-001'), PosixPath('runs/a/checkpoints/step-00000020'))
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bitstep.checkpoint import newest, set_aside
from bitstep.checkpoint.disk import sync, write_text
from bitstep.checkpoint.folder import open_folder
from bitstep.contract.manifest import (
    Manifest,
    Parent,
    append_attempt,
    read_manifest,
    refuse_if_different,
)
from bitstep.errors import CheckpointError, RunError
from bitstep.state.processes import Processes
from bitstep.state.together import alone
from bitstep.train.resolve import LOCK, is_free

END = "end.json"


@dataclass(frozen=True, slots=True)
class Opening:
    """How an attempt begins; the same on every process."""

    attempt: int
    checkpoint: Path | None
    """What it goes on from; None for the first step."""
    skipped: tuple[str, ...]
    """Newer checkpoints that did not verify, each with the reason."""


@dataclass(frozen=True, slots=True)
class End:
    """The end marker, as `trace.run` reads it: an attempt that has none was killed."""

    status: str
    """finished or stopped."""
    step: int
    root: int
    """State root."""


def attempt_folder(run: Path, attempt: int) -> Path:
    """Where the trace of an attempt lies."""
    return run / f"attempt-{attempt:03d}"


def checkpoints_folder(run: Path) -> Path:
    """Where the checkpoints of a run lie."""
    return run / "checkpoints"


def checkpoint_folder(run: Path, step: int) -> Path:
    """The checkpoint of one step, whether or not it is there."""
    return checkpoints_folder(run) / f"step-{step:08d}"


@contextmanager
def locked(run: Path, processes: Processes, resume: bool) -> Iterator[None]:
    """Hold the run directory, made where the run is new. Raises RunError on every process."""
    held: list[IO[str]] = []
    alone(processes, lambda: held.append(_lock(run, resume)))
    try:
        yield
    finally:
        for file in held:
            file.close()


def _lock(run: Path, resume: bool) -> IO[str]:
    _refuse_taken(run, resume)
    run.mkdir(parents=True, exist_ok=True)
    file = (run / LOCK).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _refuse_taken(run, resume)  # another attempt may have begun and ended meanwhile
    except BlockingIOError:
        file.close()
        raise RunError(f"{run}: another attempt is still running there; end it first") from None
    except RunError:
        file.close()
        raise
    return file


def _refuse_taken(run: Path, resume: bool) -> None:
    if not resume and not is_free(run):
        raise RunError(f"{run} is not empty: choose another directory with -o, or add --resume")


def open_attempt(run: Path, manifest: Manifest, resume: bool, processes: Processes) -> Opening:
    """Begin an attempt: choose its checkpoint, add it to the manifest, make its folder.

    Raises, on every process, ContractError if a key that must match differs from the attempt
    before, and CheckpointError if there are checkpoints and none of them verifies.
    """
    opened = alone(processes, lambda: _open(run, manifest, resume))
    checkpoint = opened["checkpoint"]
    return Opening(
        attempt=opened["attempt"],
        checkpoint=None if checkpoint is None else Path(checkpoint),
        skipped=tuple(opened["skipped"]),
    )


def _open(run: Path, manifest: Manifest, resume: bool) -> dict[str, Any]:
    parent, checkpoint, skipped = None, None, list[tuple[Path, str]]()
    if resume:
        last = read_manifest(run)[-1]
        refuse_if_different(last.manifest, manifest)
        checkpoint, skipped = newest(checkpoints_folder(run))
        if checkpoint is None and skipped:
            reasons = "; ".join(reason for _, reason in skipped)
            raise CheckpointError(f"no checkpoint of {run} verifies: {reasons}")
        if checkpoint is not None:
            parent = _parent(last.attempt, checkpoint, manifest)
        for path, _ in skipped:
            set_aside(path)
    attempt = append_attempt(run, manifest, parent)
    attempt_folder(run, attempt).mkdir()
    return {
        "attempt": attempt,
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "skipped": [reason for _, reason in skipped],
    }


def _parent(attempt: int, checkpoint: Path, manifest: Manifest) -> Parent:
    index, steps = open_folder(checkpoint).index, manifest.keys["recipe.run.steps"]
    if index.step > steps:
        raise RunError(f"{checkpoint} is at step {index.step}, run.steps is {steps}: raise it")
    return Parent(attempt=attempt, step=index.step, root=index.root)


def end_attempt(run: Path, attempt: int, end: End, processes: Processes) -> None:
    """Write the end marker, once every process has done its work."""
    processes.barrier()
    if processes.rank == 0:
        path = attempt_folder(run, attempt) / END
        text = json.dumps({"status": end.status, "step": end.step, "root": f"{end.root:016x}"})
        part = path.with_suffix(".part")
        write_text(part, f"{text}\n".encode())
        part.rename(path)
        sync(path.parent)
