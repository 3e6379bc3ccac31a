"""Writing that lasts, with errors that say where and why."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bitstep.errors import CheckpointError

T = TypeVar("T")


def writing(path: Path, work: Callable[[], T]) -> T:
    """The result of work that writes; its OSError as a CheckpointError."""
    try:
        return work()
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}; nothing of this step was kept, "
            "older checkpoints are untouched: free space or mend the folder"
        ) from None


def write_text(path: Path, text: bytes) -> None:
    """Write a new file and flush it to the disk. Raises OSError."""
    with open(path, "xb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Make the names in a folder durable; an fsync of a file does not cover its name."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
