"""From documents to tokens: their bytes, or what a Hugging Face tokenizer.json makes of their text.

A tokenizer has a vocabulary, an end-of-document token and `encode`; `data build` knows no more.

>>> ByteTokens().encode([b"ab"])[0].tolist()
[97, 98]
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from bitstep.data.corpus import SEPARATOR, VOCABULARY
from bitstep.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|endoftext|>"
"""The usual name of the end-of-document token in a tokenizer.json."""
LARGEST_FILE = 1 << 28
"""Bytes; a tokenizer.json above it is refused unread. Those of 256,000 tokens have about 40 MB."""


class Tokens(Protocol):
    """What turns documents into tokens."""

    @property
    def vocabulary(self) -> int:
        """All tokens are below it."""

    @property
    def end(self) -> int:
        """The token after each document."""

    def encode(self, documents: Sequence[bytes]) -> Sequence[npt.NDArray[np.integer[Any]]]:
        """The tokens of each document, without the end. Raises DataError: not UTF-8 text."""


class ByteTokens:
    """Tokens 0 to 255 are bytes, 256 ends a document: the tokens of a recipe's data.folder."""

    vocabulary = VOCABULARY
    end = SEPARATOR

    def encode(self, documents: Sequence[bytes]) -> list[npt.NDArray[np.uint8]]:
        """The bytes of each document."""
        return [np.frombuffer(document, np.uint8) for document in documents]


class FileTokens:
    """Tokens of a tokenizer.json: what it calls tokens of the text, and no special ones around."""

    def __init__(self, path: Path, end: str = END) -> None:
        """`end` is the text of the end-of-document token.

        Raises DataError: no such file, no tokenizer, no such token; ModuleNotFoundError where
        tokenizers is not installed.
        """
        self._tokenizer = _load(path)
        # A file may say so for the model that it came with: documents would be cut or filled.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        numbers = self._tokenizer.get_vocab(with_added_tokens=True)
        if end not in numbers:
            special = [t.content for t in self._tokenizer.get_added_tokens_decoder().values()]
            known = f"it added {' '.join(special[:9])}" if special else "it added none of its own"
            raise DataError(f"{path} has no token {end!r}: name the end of a document; {known}")
        self.end = numbers[end]
        self.vocabulary = max(numbers.values()) + 1  # numbers may be left out

    def encode(self, documents: Sequence[bytes]) -> list[npt.NDArray[np.uint32]]:
        """The tokens of each document. Raises DataError for one that is not UTF-8 text."""
        encoded = self._tokenizer.encode_batch_fast(
            [_text(document) for document in documents], add_special_tokens=False
        )
        return [np.array(one.ids, np.uint32) for one in encoded]


def _load(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        if os.stat(path).st_size > LARGEST_FILE:
            raise DataError(f"{path}: above {LARGEST_FILE} bytes; that is no tokenizer.json")
        return Tokenizer.from_str(path.read_text("utf-8"))
    except OSError as problem:
        raise DataError(f"{path}: {problem.strerror}; name a tokenizer.json") from None
    except DataError:
        raise
    except Exception as problem:  # it raises this class itself, for whatever is wrong in a file
        reason = " ".join(str(problem).split())
        raise DataError(f"{path}: {reason}; name a tokenizer.json of Hugging Face") from None


def _text(document: bytes) -> str:
    try:
        return document.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise DataError(
            f"it is not UTF-8 text at byte {problem.start}, which a tokenizer needs; "
            "convert it or take it out"
        ) from None
