"""A folder of text or source files as two packed streams of byte tokens, and its digest.

1. `files` lists those of a known suffix, in the order of their relative paths.
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
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitstep.data.files import File, list_files, read_file
from bitstep.errors import DataError
from bitstep.state.keys import key

SEPARATOR = 256
"""The token after each document; tokens 0 to 255 are its bytes."""
VOCABULARY = 257
SUFFIXES = (".c", ".cpp", ".go", ".h", ".java", ".js", ".md", ".py", ".rs", ".rst", ".ts", ".txt")
"""Files that are read, by the end of their name in lower case. Of the standard library only .py."""


@dataclass(frozen=True, eq=False)
class Split:
    """One packed stream of tokens. Sequence i starts at token i * length."""

    name: str
    tokens: npt.NDArray[np.integer[Any]]
    """[tokens], read-only."""
    documents: Sequence[str]
    """Relative POSIX paths, or other names, in order."""
    offsets: npt.NDArray[np.int64]
    """[documents + 1]: the first token of each document, and the end. Of a folder none is empty:
    an empty file still has its separator."""

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

    def sequence(self, index: int, length: int, lookahead: int) -> npt.NDArray[np.integer[Any]]:
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
        sizes = np.diff(self.offsets[first : last + 2])
        return tuple(self.documents[first + n] for n in np.flatnonzero(sizes))

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
        files = list_files(root, (".py",) if library else SUFFIXES, skip_links=library)
        corpus = _pack(root, files, held_out)
        if expect is not None and corpus.digest != expect:
            raise DataError(
                f"corpus {root} has changed: digest {corpus.digest}, on record {expect}; "
                "bring back the files as they were, or start a new run"
            )
        return corpus


def _pack(root: Path, files: Sequence[File], share: float) -> Corpus:
    is_held_out = [key("held-out", file.path) < int(share * 2**64) for file in files]
    digest = hashlib.sha256()
    train = _empty("train", [f for f, held in zip(files, is_held_out, strict=True) if not held])
    held_out = _empty("held-out", [f for f, held in zip(files, is_held_out, strict=True) if held])
    ends = {True: 0, False: 0}
    for file, held in zip(files, is_held_out, strict=True):
        content = read_file(root, file)
        path = file.path.encode()
        digest.update(len(path).to_bytes(8, "little") + path)
        digest.update(len(content).to_bytes(8, "little") + content)
        split = held_out if held else train
        start = ends[held]
        end = ends[held] = start + file.size + 1
        split.tokens[start : end - 1] = np.frombuffer(content, np.uint8)
    for split in (train, held_out):
        split.tokens.setflags(write=False)
        split.offsets.setflags(write=False)
    return Corpus(digest.hexdigest(), train, held_out)


def _empty(name: str, files: Sequence[File]) -> Split:
    sizes = [file.size + 1 for file in files]
    offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    # Filled with separators: what the documents do not overwrite is where one ends.
    tokens = np.full(int(offsets[-1]), SEPARATOR, np.uint16)
    return Split(name, tokens, tuple(file.path for file in files), offsets)
