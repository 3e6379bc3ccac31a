"""Writing PREFIX.bin and PREFIX.idx, one sequence a document, whole or not at all.

1. Both are written under other names, PREFIX.bin.part and PREFIX.idx.part, which must not be there:
   two builds of one prefix cannot mix.
2. They are flushed to the disk and renamed, the .idx last. Nothing that exists is replaced.
3. When anything goes wrong, what was written is removed.

>>> with IndexedWriter("data/tiny", dtype_for(vocabulary=257)) as writer:
...     writer.add(np.array([104, 105]), end=256)
"""

from __future__ import annotations

import os
from array import array
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from bitstep.data.indexed import CHUNK, DTYPES, HEADER, MAGIC, VERSION
from bitstep.errors import DataError

LARGEST_LENGTH = 2**31 - 1
UINT16_BELOW = 65_500
"""Vocabularies below it are stored as uint16 and others as int32, as Megatron stores them."""


def dtype_for(vocabulary: int) -> np.dtype[Any]:
    """The dtype in which tokens below `vocabulary` are stored."""
    return np.dtype("<u2" if vocabulary < UINT16_BELOW else "<i4")


class IndexedWriter:
    """A context: what was added is there when it ends well."""

    def __init__(self, prefix: str | Path, dtype: np.dtype[Any]) -> None:
        """Writes tokens as `dtype`, one of DTYPES."""
        self._paths = (Path(f"{prefix}.bin"), Path(f"{prefix}.idx"))
        self._dtype = dtype
        self._lengths = array("i")
        self._files: list[IO[bytes]] = []
        self._made = ExitStack()
        """Takes away what was made, in case of an error."""

    def __enter__(self) -> IndexedWriter:
        """Open both files. Raises DataError if one is there or cannot be made."""
        try:
            self._paths[0].parent.mkdir(parents=True, exist_ok=True)
            for path in self._paths:
                if os.path.lexists(path):
                    raise DataError(f"{path} is there: choose another prefix with -o, or remove it")
                part = Path(f"{path}.part")
                self._files.append(open(part, "xb"))  # closed in _drop
                self._made.callback(part.unlink, missing_ok=True)
        except FileExistsError as problem:
            self._drop()
            raise DataError(
                f"{problem.filename} is there: another build is writing it, or was killed; "
                "remove it if none is"
            ) from None
        except OSError as problem:
            self._drop()
            raise _unwritable(problem, self._paths[0]) from None
        except BaseException:
            self._drop()
            raise
        return self

    def add(self, tokens: npt.NDArray[np.integer[Any]], end: int) -> None:
        """A document: its tokens, then `end`. Raises DataError: too long, or a full disk."""
        if tokens.size >= LARGEST_LENGTH:
            raise DataError(f"a document of {tokens.size} tokens: {LARGEST_LENGTH - 1} at most")
        stored = np.full(tokens.size + 1, end, self._dtype)
        stored[:-1] = tokens
        try:
            self._files[0].write(stored.data)
        except OSError as problem:
            raise _unwritable(problem, self._paths[0]) from None
        self._lengths.append(stored.size)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Bring both files to their names, or remove them."""
        try:
            if error is None:
                self._write_index()
                self._publish()
        except OSError as problem:
            raise _unwritable(problem, self._paths[0]) from None
        finally:
            self._drop()

    def _write_index(self) -> None:
        code = next(c for c, name in DTYPES.items() if name == self._dtype.name)
        lengths = np.frombuffer(self._lengths, np.int32) if self._lengths else np.empty(0, np.int32)
        index = self._files[1]
        index.write(HEADER.pack(MAGIC, VERSION, code, lengths.size, lengths.size + 1))
        index.write(lengths.astype("<i4", copy=False).data)
        pointer = 0
        for first in range(0, lengths.size, CHUNK):
            sizes = lengths[first : first + CHUNK].astype("<i8") * self._dtype.itemsize
            ends = pointer + np.cumsum(sizes)
            index.write((ends - sizes).data)
            pointer = int(ends[-1])
        for first in range(0, lengths.size + 1, CHUNK):
            last = min(first + CHUNK, lengths.size + 1)
            index.write(np.arange(first, last, dtype="<i8").data)

    def _publish(self) -> None:
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
        for path in self._paths:
            if os.path.lexists(path):
                raise DataError(f"{path} came there meanwhile: choose another prefix with -o")
        for path in self._paths:
            os.rename(f"{path}.part", path)
            self._made.callback(path.unlink, missing_ok=True)
        folder = os.open(self._paths[0].parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._made.pop_all()  # both are there: nothing is taken away any more

    def _drop(self) -> None:
        for file in self._files:
            with suppress(OSError):  # what was kept is on the disk already; the rest goes
                file.close()
        self._made.close()


def _unwritable(problem: OSError, path: Path) -> DataError:
    name = problem.filename or path
    return DataError(f"cannot write {name}: {problem.strerror}; make room or choose another -o")
