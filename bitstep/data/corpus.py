"""A folder of text or source files as two packed streams of byte tokens, and its digest.

1. Files of a known suffix are listed, in the order of their relative paths, whatever order the
   file system gives. Symbolic links are not followed.
2. A keyed hash of its path puts each document into the training or the held-out split.
3. Each split is one array: the bytes of a document, SEPARATOR, the next document.
4. The digest covers paths, sizes and bytes of both splits, in the order of step 1, and nothing
   else: not where the folder is, not when it was written, not how it was split.

>>> corpus = Corpus.read(held_out=0.05)  # the Python standard library's own source
>>> corpus.train.sequence(0, length=256, lookahead=1).shape
(257,)
"""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bitstep.errors import DataError
from bitstep.state.keys import key

SEPARATOR = 256
"""The token after each document; tokens 0 to 255 are its bytes."""
VOCABULARY = 257
SUFFIXES = (".c", ".cpp", ".go", ".h", ".java", ".js", ".md", ".py", ".rs", ".rst", ".ts", ".txt")
"""Files that are read, by the end of their name in lower case. Of the standard library only .py."""
LEFT_OUT = ("__pycache__", "dist-packages", "site-packages")
"""Folders that are not entered; nor is one whose name begins with a dot."""


@dataclass(frozen=True, eq=False)
class Split:
    """One packed stream of tokens. Sequence i starts at token i * length."""

    name: str
    tokens: npt.NDArray[np.uint16]
    """[tokens], read-only."""
    documents: tuple[str, ...]
    """Relative POSIX paths, in order."""
    offsets: npt.NDArray[np.int64]
    """[documents + 1]: the first token of each document, and the end. None is empty: an empty
    file still has its separator."""

    def sequences(self, length: int, lookahead: int) -> int:
        """How many sequences the split holds. Raises DataError if it is none."""
        count = (self.tokens.size - lookahead) // length
        if count < 1:
            raise DataError(
                f"the {self.name} split has {self.tokens.size} tokens in {len(self.documents)} "
                f"documents and one sequence takes {length + lookahead}: name a larger folder, "
                "another data.held_out or a shorter data.sequence"
            )
        return count

    def sequence(self, index: int, length: int, lookahead: int) -> npt.NDArray[np.uint16]:
        """[length + lookahead] tokens, a read-only view. Raises DataError outside the split."""
        self._check(index, length, lookahead)
        return self.tokens[index * length : (index + 1) * length + lookahead]

    def documents_of(self, index: int, length: int) -> tuple[str, ...]:
        """Paths of the documents that sequence `index` takes tokens from, lookahead left aside.

        Raises DataError outside the split.
        """
        self._check(index, length, 0)
        ends = (index * length, (index + 1) * length - 1)
        first, last = np.searchsorted(self.offsets, ends, side="right") - 1
        return self.documents[first : last + 1]

    def _check(self, index: int, length: int, lookahead: int) -> None:
        count = self.sequences(length, lookahead)
        if not 0 <= index < count:
            raise DataError(f"sequence {index} of the {self.name} split: it has 0 to {count - 1}")


@dataclass(frozen=True, eq=False)
class Corpus:
    """What was read: two splits and the digest of both together."""

    digest: str
    """SHA-256 in hex over (path length, path, size, bytes) of every document, in order of path;
    numbers as 8 bytes, little-endian."""
    train: Split
    held_out: Split

    @classmethod
    def read(
        cls, folder: str | Path = "", held_out: float = 0.0, expect: str | None = None
    ) -> Corpus:
        """Read a folder, or the standard library's source where it is "".

        `held_out` is the share of documents to keep for evaluation, chosen by path alone, so that
        a document stays in its split when others come and go. `expect` is the digest on record.
        Raises DataError: no such folder, nothing to read in it, something that cannot be read or
        that changes while it is read, a link that leads out of it, a digest other than `expect`.
        """
        library = folder == ""
        root = Path(sysconfig.get_path("stdlib") if library else folder)
        if not os.path.isdir(root):
            raise DataError(f"corpus {str(root)!r}: no such folder; set data.folder")
        # Distributions link single modules of the library to places like /etc: left out.
        paths = _list(root, (".py",) if library else SUFFIXES, skip_links=library)
        corpus = _pack(root, [_document(root, path, held_out) for path in paths])
        if expect is not None and corpus.digest != expect:
            raise DataError(
                f"corpus {root} has changed: digest {corpus.digest}, on record {expect}; "
                "bring back the files as they were, or start a new run"
            )
        return corpus


@dataclass(frozen=True, slots=True)
class _Document:
    path: str
    size: int
    held_out: bool


def _list(root: Path, suffixes: tuple[str, ...], skip_links: bool) -> list[str]:
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
    return sorted(paths)  # code points sort as their UTF-8 bytes do


def _raise(problem: OSError) -> None:
    raise _unreadable(problem) from None


def _unreadable(problem: OSError) -> DataError:
    return DataError(f"corpus: cannot read {problem.filename}: {problem.strerror}; correct that")


def _check_name(path: str) -> None:
    # Paths are printed, hashed and written as JSON: what is not text must not come so far.
    if any(c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in path):
        raise DataError(f"corpus: the name {path!r} is not plain UTF-8 text; rename it")


def _check_link(root: Path, link: str) -> None:
    # A link to something inside is left out: that is read under its own name.
    if not Path(os.path.realpath(link)).is_relative_to(os.path.realpath(root)):
        raise DataError(f"corpus: {link} is a link that leads out of {root}; replace or remove it")


def _document(root: Path, path: str, held_out: float) -> _Document:
    try:
        status = os.lstat(root / path)
    except OSError as problem:
        raise _unreadable(problem) from None
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"corpus: {root / path} is not a regular file; remove or rename it")
    return _Document(path, status.st_size, key("held-out", path) < int(held_out * 2**64))


def _pack(root: Path, documents: Sequence[_Document]) -> Corpus:
    digest = hashlib.sha256()
    train = _empty("train", [d for d in documents if not d.held_out])
    held_out = _empty("held-out", [d for d in documents if d.held_out])
    ends = {True: 0, False: 0}
    for document in documents:
        content = _read(root / document.path, document.size)
        path = document.path.encode()
        digest.update(len(path).to_bytes(8, "little") + path)
        digest.update(len(content).to_bytes(8, "little") + content)
        split = held_out if document.held_out else train
        start = ends[document.held_out]
        end = ends[document.held_out] = start + document.size + 1
        split.tokens[start : end - 1] = np.frombuffer(content, np.uint8)
    for split in (train, held_out):
        split.tokens.setflags(write=False)
        split.offsets.setflags(write=False)
    return Corpus(digest.hexdigest(), train, held_out)


def _empty(name: str, documents: Sequence[_Document]) -> Split:
    sizes = [d.size + 1 for d in documents]
    offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    # Filled with separators: what the documents do not overwrite is where one ends.
    tokens = np.full(int(offsets[-1]), SEPARATOR, np.uint16)
    return Split(name, tokens, tuple(d.path for d in documents), offsets)


def _read(path: Path, size: int) -> bytes:
    try:
        with open(path, "rb", opener=_no_links) as file:
            content = file.read(size + 1)
    except OSError as problem:
        raise _unreadable(problem) from None
    if len(content) != size:
        raise DataError(f"corpus: {path} changed size while it was read; let it rest, try again")
    return content


def _no_links(path: str, flags: int) -> int:
    # The name may have become a link, or a pipe, since it was listed.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
