"""Save the training state: all processes or none, and never a half one under its final name.

1. Every process fingerprints its parts in memory; replicas must agree before one is kept.
2. Process 0 makes a folder whose name starts with a dot, beside the final one.
3. Every process writes its own file there: flush, fsync.
4. Process 0 writes `state.json` and `index.json`, renames the folder, syncs the one above it, and
   puts the marker in last. Until the marker is there, nothing is promised.

    save(run / "checkpoints", 20, state, processes)     # run/checkpoints/step-00000020
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from bitstep.checkpoint.disk import sync, write_text, writing
from bitstep.checkpoint.entries import described, entries
from bitstep.checkpoint.format import (
    FORMAT,
    INDEX,
    MARKER,
    VALUES,
    FileEntry,
    Index,
    Json,
    TensorEntry,
    canonical,
    hexadecimal,
    index_text,
    marker_text,
    part_key,
    rank_name,
    step_name,
)
from bitstep.checkpoint.keep import set_aside
from bitstep.checkpoint.rankfile import write
from bitstep.checkpoint.verify import verify
from bitstep.errors import CheckpointError
from bitstep.fingerprint import DEFINITION
from bitstep.records import Fingerprint
from bitstep.state.roots import state_root
from bitstep.state.together import alone, together

if TYPE_CHECKING:
    import torch

    from bitstep.state.processes import Processes
    from bitstep.state.streams import TrainingState

POSITIONS = ("write rank file", "written", "index", "before rename", "renamed", "marked")
"""Where `progress` is called; the first two on every process, the others on process 0."""

Progress = Callable[[str], None]


def save(
    root_dir: Path,
    step: int,
    state: TrainingState,
    processes: Processes,
    progress: Progress | None = None,
    writer: str | None = None,
) -> Path:
    """Save the state as `root_dir/step-<step>`, and return that path, on every process.

    `root_dir` must be one folder for all processes. A complete checkpoint of this step with the
    same state root is kept as it is. Raises CheckpointError on every process, with one message, if
    any process fails, if replicas or values differ between processes, or if a checkpoint of this
    step with another root is there; older checkpoints are untouched. `writer` names who saves, as
    nobody else ever will, the number of an attempt; without it a random word does.
    """
    say = progress or (lambda position: None)
    root_dir = Path(root_dir)
    target = root_dir / step_name(step)
    parts = together(processes, lambda: described(state))
    draft = _Draft(root_dir, step, state.values, writer or secrets.token_hex(4))
    temporary = alone(processes, lambda: draft.begin(parts))
    if temporary is None:
        return target
    try:
        files = together(
            processes, lambda: _write_rank(Path(temporary), state, processes.rank, say)
        )
        alone(processes, lambda: draft.publish(Path(temporary), files, say))
    except BaseException:  # Ctrl-C included: what has no marker is nothing, and goes
        if processes.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def _write_rank(folder: Path, state: TrainingState, rank: int, say: Progress) -> Json:
    """Write the file of this process; its size and checksum."""
    say("write rank file")
    parts: dict[str, torch.Tensor] = {}
    for piece in state.pieces:
        if piece.tensor.numel() and not (piece.replicated and rank):
            parts[part_key(piece.path, piece.place.offsets)] = piece.tensor
    path = folder / rank_name(rank)
    entry = writing(path, lambda: write(path, parts))
    say("written")
    return [entry.bytes, entry.sha256]


class _Draft:
    """What process 0 knows of a checkpoint that is being written; idle on the others."""

    def __init__(
        self, root_dir: Path, step: int, values: dict[str, dict[str, Json]], writer: str
    ) -> None:
        self.root_dir, self.step, self.values, self.writer = root_dir, step, values, writer
        self.tensors: tuple[TensorEntry, ...] = ()
        self.root = 0

    def begin(self, parts: list[Json]) -> str | None:
        """Make the temporary folder and return it; None if this state is already saved."""
        self.tensors = entries(parts)
        prints = {
            entry.path: Fingerprint(int(entry.sums[0], 16), entry.dtype, entry.shape)
            for entry in self.tensors
        }
        self.root = state_root(prints, self.values)
        writing(self.root_dir, lambda: self.root_dir.mkdir(parents=True, exist_ok=True))
        writing(self.root_dir, lambda: sync(self.root_dir.parent))
        for leftover in self.root_dir.glob(".step-*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)
        if self._already_there():
            return None
        # A name of its own: a dying process of an earlier attempt cannot write into this one. The
        # processes tell each other, so where nothing else varies it must not vary either.
        name = f".{step_name(self.step)}.{self.writer}.tmp"
        temporary = self.root_dir / name
        writing(temporary, temporary.mkdir)
        return str(temporary)

    def _already_there(self) -> bool:
        """Whether this state is saved already and verifies.

        What has no marker was never promised, and goes.
        """
        target = self.root_dir / step_name(self.step)
        if not os.path.lexists(target):
            return False
        if target.is_dir() and not target.is_symlink() and not os.path.lexists(target / MARKER):
            writing(target, lambda: shutil.rmtree(target))
            return False
        try:
            found = verify(target).root
        except CheckpointError:
            # It must not stop the run, nor pass for the checkpoint of this step.
            set_aside(target)
            return False
        if found != self.root:
            raise CheckpointError(
                f"{target} holds another state (root {hexadecimal(found)}, now "
                f"{hexadecimal(self.root)}); nothing was written: remove it or save elsewhere"
            )
        return True

    def publish(self, temporary: Path, files: list[Json], say: Progress) -> None:
        """From the files of all processes to a complete checkpoint."""
        listed = {rank_name(rank): FileEntry(*file) for rank, file in enumerate(files)}
        for name, entry in listed.items():
            _check_visible(temporary / name, entry.bytes)
        values = canonical(self.values)
        listed[VALUES] = FileEntry(len(values), sha256(values).hexdigest())
        say("index")
        _put(temporary / VALUES, values)
        text = index_text(
            Index(
                definition=DEFINITION,
                files=listed,
                format=FORMAT,
                root=hexadecimal(self.root),
                step=self.step,
                tensors=self.tensors,
                world=len(files),
            )
        )
        _put(temporary / INDEX, text)
        writing(temporary, lambda: sync(temporary))
        say("before rename")
        target = self.root_dir / step_name(self.step)
        writing(target, lambda: temporary.rename(target))
        try:
            writing(self.root_dir, lambda: sync(self.root_dir))
            say("renamed")
            _put(target / f"{MARKER}.tmp", marker_text(text))
            writing(target, lambda: (target / f"{MARKER}.tmp").rename(target / MARKER))
            writing(target, lambda: sync(target))
        except BaseException:
            with suppress(OSError):
                (target / MARKER).unlink(missing_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            raise
        say("marked")


def _check_visible(path: Path, size: int) -> None:
    found = path.stat().st_size if path.is_file() else -1
    if found != size:
        raise CheckpointError(
            f"process 0 does not see {path} as it was written ({found} of {size} bytes): "
            "put the checkpoints on a file system that all processes share"
        )


def _put(path: Path, text: bytes) -> None:
    writing(path, lambda: write_text(path, text))
