"""`data build`: a folder of text as an indexed dataset, the same bytes whenever it is made.

1. Files are listed in the order of their relative paths: those that a corpus reads, and .jsonl.
2. A file is a document; of a .jsonl every line is one, a JSON object with a string "text".
3. Documents become tokens, a batch at a time, each with the end-of-document token after it.
4. PREFIX.bin.part and PREFIX.idx.part are written, flushed, and renamed; nothing is replaced.

Without a tokenizer, tokens are bytes: the .bin is the stream that a recipe's data.folder gives.

>>> build(Path("text"), "data/text", ByteTokens()).dtype
'uint16'
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bitstep.data.corpus import SUFFIXES
from bitstep.data.files import File, list_files, read_file, read_pieces
from bitstep.data.indexed import IndexedDataset
from bitstep.data.indexed_writer import IndexedWriter, dtype_for
from bitstep.data.tokens import Tokens
from bitstep.errors import DataError

LINES = ".jsonl"
LARGEST_DOCUMENT = 2**31 - 2
"""Bytes, and with its end also tokens: what an int32 length holds."""
BATCH_BYTES, BATCH_DOCUMENTS = 1 << 24, 1 << 10
"""A batch of documents ends at either."""


class Document(NamedTuple):
    """One document, and where it stands for an error."""

    place: str
    content: bytes


class Built(NamedTuple):
    """What was written."""

    documents: int
    tokens: int
    """Of all documents, their ends included."""
    dtype: str
    vocabulary: int
    end: int
    """The end-of-document token."""
    digest: str
    """As `data.digest` in the manifest of a run that trains on it."""


def build(folder: Path, prefix: str | Path, tokens: Tokens) -> Built:
    """Write PREFIX.bin and PREFIX.idx from the documents of a folder.

    Raises DataError for what cannot be read, is not text or no document, and for a file that
    stands where one would be written; then nothing is left behind.
    """
    if not folder.is_dir():
        raise DataError(f"{str(folder)!r}: no such folder; name one with files of text")
    files = list_files(folder, (*SUFFIXES, LINES), skip_links=False)
    with IndexedWriter(prefix, dtype_for(tokens.vocabulary)) as writer:
        for batch in _batches(_documents(folder, files)):
            _write(writer, batch, tokens)
    dataset = IndexedDataset.open(prefix)
    return Built(
        documents=dataset.documents.size - 1,
        tokens=dataset.tokens.size,
        dtype=dataset.tokens.dtype.name,
        vocabulary=tokens.vocabulary,
        end=tokens.end,
        digest=dataset.scan.digest,
    )


def _write(writer: IndexedWriter, batch: list[Document], tokens: Tokens) -> None:
    for document in batch:
        if len(document.content) > LARGEST_DOCUMENT:
            raise DataError(f"{document.place}: above {LARGEST_DOCUMENT} bytes; cut the document")
    try:
        encoded = tokens.encode([document.content for document in batch])
    except DataError:
        for document in batch:  # again, one by one, for the name of the first that is wrong
            try:
                tokens.encode([document.content])
            except DataError as problem:
                raise DataError(f"{document.place}: {problem}") from None
        raise
    for numbers in encoded:
        writer.add(numbers, tokens.end)


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.content)
        if size >= BATCH_BYTES or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _documents(folder: Path, files: list[File]) -> Iterator[Document]:
    for file in files:
        place = str(folder / file.path)
        if file.path.lower().endswith(LINES):
            yield from _lines(folder, file, place)
        elif file.size > LARGEST_DOCUMENT:
            raise DataError(f"{place}: above {LARGEST_DOCUMENT} bytes; cut the document")
        else:
            yield Document(place, read_file(folder, file))


def _lines(folder: Path, file: File, place: str) -> Iterator[Document]:
    for number, line in enumerate(read_pieces(folder, file, LARGEST_DOCUMENT), start=1):
        if line.strip():
            where = f"{place}, line {number}"
            yield Document(where, _text(line, where))


def _text(line: bytes, where: str) -> bytes:
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as problem:
        reason = " ".join(str(problem).split())
        raise DataError(f"{where}: no JSON: {reason}; correct or remove it") from None
    text = value.get("text") if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise DataError(f'{where}: no object with a string "text"; correct or remove it')
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f'{where}: "text" holds half a character; correct or remove it') from None
