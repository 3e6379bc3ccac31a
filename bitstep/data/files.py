"""A folder of files as training data meets it: listed in one order, and read without surprises.

1. Files of known suffixes are listed in the order of their relative paths, whatever order the file
   system gives. Symbolic links are not followed; one that leads out of the folder is an error.
2. What is no regular file is refused unopened.
3. A file is read whole or in lines, and must have the size that was listed.

>>> [document.path for document in list_files(Path("text"), (".txt",), skip_links=False)]
['a/first.txt', 'second.txt']
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bitstep.errors import DataError

LEFT_OUT = ("__pycache__", "dist-packages", "site-packages")
"""Folders that are not entered; nor is one whose name begins with a dot."""


@dataclass(frozen=True, slots=True)
class File:
    """A regular file of the folder."""

    path: str
    """Relative, POSIX."""
    size: int
    """Bytes, when it was listed."""


def list_files(root: Path, suffixes: tuple[str, ...], *, skip_links: bool) -> list[File]:
    """Every file below `root` whose name ends with a suffix, in any case, in order of path.

    `skip_links` leaves links that lead out of the folder aside. Raises DataError for them
    otherwise, for nothing to list, and for what cannot be read or is not a regular file.
    """
    paths: list[str] = []
    for folder, folders, files in os.walk(root, onerror=_raise):
        folders[:] = [f for f in folders if f not in LEFT_OUT and not f.startswith(".")]
        for name in (*folders, *(f for f in files if f.lower().endswith(suffixes))):
            path = os.path.join(folder, name)
            _check_name(path)
            if os.path.islink(path):
                if not skip_links:
                    _check_link(root, path)
            elif name not in folders:
                paths.append(os.path.relpath(path, root).replace(os.sep, "/"))
    if not paths:
        raise DataError(f"corpus {root}: no file in it ends with {' '.join(suffixes)}; add some")
    return [_file(root, path) for path in sorted(paths)]  # code points sort as UTF-8 bytes do


def read_file(root: Path, file: File) -> bytes:
    """Its bytes. Raises DataError if it cannot be read or has changed its size."""
    return b"".join(read_pieces(root, file, file.size + 1, by_line=False))


def read_pieces(root: Path, file: File, largest: int, *, by_line: bool = True) -> Iterator[bytes]:
    """Its lines, each with its end; one of more than `largest` bytes comes in several pieces.

    Not `by_line`, the pieces are cut at `largest` alone. Raises as `read_file`.
    """
    path, size = root / file.path, 0
    try:
        with open(path, "rb", opener=_no_links) as opened:
            read = opened.readline if by_line else opened.read
            while piece := read(largest):
                size += len(piece)
                if size > file.size:
                    break
                yield piece
    except OSError as problem:
        raise unreadable(problem) from None
    if size != file.size:
        raise DataError(f"corpus: {path} changed size while it was read; let it rest, try again")


def unreadable(problem: OSError) -> DataError:
    """The error for a file or folder that cannot be read."""
    return DataError(f"corpus: cannot read {problem.filename}: {problem.strerror}; correct that")


def _raise(problem: OSError) -> None:
    raise unreadable(problem) from None


def _check_name(path: str) -> None:
    # Paths are printed, hashed and written as JSON: what is not text must not come so far.
    if any(c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in path):
        raise DataError(f"corpus: the name {path!r} is not plain UTF-8 text; rename it")


def _check_link(root: Path, link: str) -> None:
    # A link to something inside is left out: that is read under its own name.
    if not Path(os.path.realpath(link)).is_relative_to(os.path.realpath(root)):
        raise DataError(f"corpus: {link} is a link that leads out of {root}; replace or remove it")


def _file(root: Path, path: str) -> File:
    try:
        status = os.lstat(root / path)
    except OSError as problem:
        raise unreadable(problem) from None
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"corpus: {root / path} is not a regular file; remove or rename it")
    return File(path, status.st_size)


def _no_links(path: str, flags: int) -> int:
    # The name may have become a link, or a pipe, since it was listed.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
