"""Rows of a recorder -> the trace of its process, whatever goes wrong on the way.

1. Rows are kept in columns; nothing is written before the first training step, so that a process
   that never trains leaves no file.
2. `end_step` resolves what an accelerator computed, with one transfer, and writes one batch.
3. Recording never ends the program: a failure or a spent budget lowers the level, and the next
   batch has a row that says so. When nothing can be written any more, it warns once and stops.
4. With `strict` a failure is raised instead.

    journal = Journal(options, columns)
    journal.open(rank=0, world=2)
    journal.end_step(1, root, level=3)
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from bitstep.errors import BitstepError, TraceError, printable
from bitstep.observe.attempt import claim
from bitstep.observe.options import LEVELS, RecordOptions
from bitstep.trace import TraceWriter
from bitstep.trace.columns import Columns

MOST_WAITING = 400_000
"""Rows that wait for the first training step: what a process does that never trains is dropped."""

_SHARES = (1.0, 0.99, 0.97, 0.9)
"""What has been written of the budget when a level is lowered, by level: the metrics and roots of
a step are the last to go."""


class Journal:
    """The trace of this process, and how much of it is recorded."""

    def __init__(self, options: RecordOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._writer: TraceWriter | None = None
        self._attempt: Path | None = None
        self._gaps: list[str] = []
        self.ceiling = len(LEVELS) - 1
        """The highest level that may still be recorded; -1: none, recording has stopped."""

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    @property
    def attempt(self) -> Path | None:
        """The directory of this attempt, once it is known."""
        return self._attempt

    def open(self, rank: int, world: int) -> None:
        """Make the files of this rank, once."""
        if self._attempt is not None:
            return
        try:
            self._attempt = claim(self._options.directory, rank, world)
            self._writer = TraceWriter(self._attempt, rank, self._options.steps_per_file)
        except (BitstepError, OSError) as error:
            self.stop(str(error), error)

    def gap(self, reason: str) -> None:
        """Something is missing from here on; the next batch says it."""
        if reason not in self._gaps:
            self._gaps.append(reason)

    def lower(self, reason: str, error: BaseException | None) -> None:
        """Record one level less from now on; with `strict`, raise what has failed."""
        self._at_most(-1 if self._options.strict else self.ceiling - 1, reason, error)

    def _at_most(self, level: int, reason: str, error: BaseException | None) -> None:
        self.ceiling = level
        if level < 0:
            self.stop(reason, error)
        else:
            self.gap(f"from here on at most level {LEVELS[level]}: {reason}")

    def stop(self, reason: str, error: BaseException | None) -> None:
        """Record nothing from now on. Raises only if the user asked for it."""
        self.ceiling = -1
        self._columns.clear()
        self._drop()
        if self._options.strict:
            raise TraceError(f"recording stopped: {reason}") from error
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # It is closed.
                words = f"bitstep: recording stopped: {printable(reason)}"
                print(words, file=sys.stderr, flush=True)

    def trim(self) -> None:
        """Before the first step: forget what has grown too long."""
        if self._writer is None and len(self._columns) > MOST_WAITING:
            self._columns.clear()
            self.gap(f"more than {MOST_WAITING} rows before the first training step")

    def gaps(self) -> list[str]:
        """What was not yet said, once."""
        gaps, self._gaps = self._gaps, []
        return gaps

    def end_step(self, step: int, root: int, level: int) -> None:
        """Write the rows of a step, which was recorded at `level`, as one batch."""
        if self._writer is None:
            self._columns.clear()
            return
        try:
            resolve(self._columns.digests)
            self._writer.end_step_columns(step, root, self._columns)
        except TraceError as error:
            self.stop(str(error), error)
            return
        except Exception:
            # Of an accelerator: nothing of this step can be told, and the next may be whole.
            self._columns.clear()
            raise
        budget = self._options.budget
        if budget is not None and self._written() > budget * _SHARES[level]:
            self._at_most(level - 1, f"the budget of {budget} bytes is nearly spent", None)

    def close(self) -> None:
        """Write the end marker."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except TraceError as error:
                self.stop(str(error), error)

    def abandon(self) -> None:
        """In a forked child: the files are the parent's."""
        self._writer = None
        self._columns.clear()
        self.ceiling = -1

    def _drop(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            # Without its end marker: the reader shall know that the run went on.
            writer.__exit__(TraceError, None, None)

    def _written(self) -> int:
        return 0 if self._writer is None else self._writer.written


def resolve(digests: list[Any]) -> None:
    """Read what is still on an accelerator: one transfer, at the end of a step."""
    if {*map(type, digests)} == {int}:  # A tenth of the time of asking each.
        return
    waiting = [at for at, digest in enumerate(digests) if isinstance(digest, torch.Tensor)]
    if waiting:
        with _disable_current_modes(), torch.no_grad():
            values = torch.stack([digests[at] for at in waiting]).tolist()
        for at, value in zip(waiting, values, strict=True):
            digests[at] = value % 2**64


def rank_and_world() -> tuple[int, int]:
    """Of this process: from the process group if there is one, else from the launcher."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    for rank, world in (
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ):
        if os.environ.get(rank, "").isdecimal():
            size = os.environ.get(world, "")
            return int(os.environ[rank]), int(size) if size.isdecimal() else 1
    return 0, 1
