"""The files of a trace directory: found by name, opened only where they are plain.

1. `list_files` names the pairs in a directory and its folders `ranks-00001` ...
2. `open_plain` opens one, and `plain_size` asks for its size: a link or a device is refused.
3. `make_folder`, `create_new` and `write_whole` are the same for the writer.

    names, damage = list_files(run / "attempt-000")
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO, Final

from bitstep.errors import TraceError
from bitstep.trace.index import FileName

_FOLDER: Final = re.compile(r"ranks-\d{5,}", re.ASCII)


def list_files(directory: Path) -> tuple[list[FileName], list[str]]:
    """The names of trace files, in order, and a line of damage for each that no writer gives."""
    names: set[FileName] = set()
    damage = []
    for text in _list(directory):
        if _FOLDER.fullmatch(text):
            found = [f"{text}/{inner}" for inner in _list(_plain_folder(directory / text))]
        else:
            found = [text]
        for path in found:
            name = FileName.parse(path)
            if name:
                names.add(name)
            elif path.endswith((".arrows", ".index")):
                damage.append(f"damaged: {path!r}: not a name of a trace file, so it was not read")
    return sorted(names), damage


def _list(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError as error:
        raise TraceError(f"{directory}: cannot be read: {error.strerror}") from error


def _plain_folder(path: Path) -> Path:
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise TraceError(f"{path}: is a link or a file: a trace holds plain folders only")
    return path


def open_plain(path: Path) -> BinaryIO | None:
    """Open a file to read; None if there is none. Raises TraceError for a link or a device.

    A link could lead out of the folder, and opening a pipe would wait for ever.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = "is a link" if error.errno == errno.ELOOP else f"cannot be opened: {error}"
        raise TraceError(f"{path}: {reason}: a trace holds plain files only") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_plain(path)
    return os.fdopen(descriptor, "rb")


def plain_size(path: Path) -> int | None:
    """Bytes of a file that is not opened; None if there is none. Raises as `open_plain` does."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise _not_plain(path)
    return found.st_size


def _not_plain(path: Path) -> TraceError:
    return TraceError(f"{path}: is not a plain file: a trace holds plain files only")


def make_folder(directory: Path, folder: str) -> None:
    """Make `directory` and the folder of a trace in it ("" or "ranks-00001/"), where missing."""
    path = directory / folder
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(f"{path}: cannot be made: {error.strerror}") from error
    if folder:
        _plain_folder(path)


def create_new(path: Path) -> int:
    """The descriptor of a file that was not there before."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileExistsError as error:
        raise TraceError(f"{path}: exists already: write to a new directory") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be made: {error.strerror}") from error


def write_whole(descriptor: int, raw: bytes, path: Path) -> None:
    """Write all of `raw`; `path` is for the error."""
    rest = memoryview(raw)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror}: make room") from error
