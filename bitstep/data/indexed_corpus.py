"""An indexed dataset as the corpus of a run: two splits of its one stream, still on the disk.

1. The dataset is opened and every byte of it read once, for its digest and its largest token.
2. The last documents, a share of them, are held out: Megatron, too, cuts a dataset by its order.
3. Each split is a part of the mapped .bin; a document is named by its number.

>>> corpus = indexed_corpus("data/pile", vocabulary=50_304, held_out=0.01)
>>> corpus.train.documents[7]
'document 7'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from bitstep.data.corpus import Corpus, Split
from bitstep.data.indexed import IndexedDataset
from bitstep.errors import DataError


class Numbered(Sequence[str]):
    """The names of documents `first` to `last`, exclusive: made when asked for, never stored."""

    def __init__(self, first: int, last: int) -> None:
        self._numbers = range(first, last)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        """One name, or a tuple of them."""
        if isinstance(index, slice):
            return tuple(f"document {number}" for number in self._numbers[index])
        return f"document {self._numbers[index]}"


def indexed_corpus(
    prefix: str, *, vocabulary: int, held_out: float = 0.0, expect: str | None = None
) -> Corpus:
    """The corpus of PREFIX.bin and PREFIX.idx. Its tokens stay on the disk.

    `held_out` is the share of the documents to keep for evaluation, rounded down; `expect` is the
    digest on record. Raises DataError: as `IndexedDataset.open`, a token outside the vocabulary,
    a digest other than `expect`.
    """
    dataset = IndexedDataset.open(prefix)
    scan = dataset.scan
    if expect is not None and scan.digest != expect:
        raise DataError(
            f"dataset {prefix} has changed: digest {scan.digest}, on record {expect}; "
            "bring back the files as they were, or start a new run"
        )
    if scan.least < 0 or scan.largest >= vocabulary:
        raise DataError(
            f"dataset {prefix} has tokens from {scan.least} to {scan.largest}: "
            f"model.vocabulary = {vocabulary} has 0 to {vocabulary - 1}; set another"
        )
    offsets = dataset.document_offsets()
    count = offsets.size - 1
    cut = count - int(count * held_out)
    bound = int(offsets[cut])
    for array in (dataset.tokens, offsets):
        array.setflags(write=False)
    train = Split("train", dataset.tokens[:bound], Numbered(0, cut), offsets[: cut + 1])
    rest = dataset.tokens[bound:]
    return Corpus(
        scan.digest, train, Split("held-out", rest, Numbered(cut, count), offsets[cut:] - bound)
    )
