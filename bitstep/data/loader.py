"""Batches of tokens as a pure function of (seed, position): there is no other state.

1. A position counts the sequences consumed since the start of training.
2. An epoch is as many positions as the split holds sequences.
3. Within an epoch, position p shows sequence place(p, n, key(seed, "data", epoch)).

Nothing is drawn from any generator, so workers, processes, evaluations and a restart at any
position cannot change what a position shows. B sequences of logical rank v at a step that starts
at position p are `tokens(p + v * B, B)`.

>>> loader = Loader(Corpus.read(held_out=0.05), "train", seed=1, sequence=256, lookahead=1)
>>> loader.tokens(position=0, count=4).shape
torch.Size([4, 257])
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal

import torch

from bitstep.data.corpus import Corpus
from bitstep.data.permutation import place
from bitstep.errors import DataError
from bitstep.state.keys import key

SplitName = Literal["train", "held-out"]


class Loader:
    """The sequences of one split, in a keyed order. Holds no position."""

    def __init__(
        self, corpus: Corpus, split: SplitName, *, seed: int, sequence: int, lookahead: int
    ) -> None:
        """`sequence` and `lookahead` in tokens. Raises DataError if the split holds no sequence."""
        self._split = corpus.train if split == "train" else corpus.held_out
        self._seed = seed
        self._sequence = sequence
        self._lookahead = lookahead
        self.sequences_per_epoch = self._split.sequences(sequence, lookahead)

    def index(self, position: int) -> int:
        """The sequence of the split that a position shows. Raises DataError if it is negative."""
        if position < 0:
            raise DataError(f"data position {position}: give one from 0 on")
        epoch, within = divmod(position, self.sequences_per_epoch)
        return place(within, self.sequences_per_epoch, key(self._seed, "data", epoch))

    def tokens(self, position: int, count: int) -> torch.Tensor:
        """[count, sequence + lookahead] int64, on the CPU. Epochs may change within it."""
        return self._rows([self.index(p) for p in range(position, position + count)])

    def documents(self, position: int, count: int) -> tuple[tuple[str, ...], ...]:
        """[count]: relative paths of the documents that each sequence takes tokens from."""
        return tuple(
            self._split.documents_of(self.index(p), self._sequence)
            for p in range(position, position + count)
        )

    def held_out(self, batch: int, count: int) -> torch.Tensor:
        """[count, sequence + lookahead] int64: batch `batch` in the order of the documents.

        Starts over at the end of the split. Raises DataError if `batch` is negative.
        """
        if batch < 0:
            raise DataError(f"held-out batch {batch}: give one from 0 on")
        first = batch * count
        return self._rows(i % self.sequences_per_epoch for i in range(first, first + count))

    def order_digest(self, count: int = 1000) -> str:
        """SHA-256 in hex of the sequences that the first `count` positions show, for the manifest.

        Numbers as 8 bytes, little-endian.
        """
        order = b"".join(self.index(p).to_bytes(8, "little") for p in range(count))
        return hashlib.sha256(order).hexdigest()

    def _rows(self, indices: Iterable[int]) -> torch.Tensor:
        rows = [self._split.sequence(i, self._sequence, self._lookahead) for i in indices]
        # Torch's own allocation, which is aligned to 64 bytes, and not NumPy's, which is not:
        # some kernels give other bits on other alignments.
        batch = torch.empty(
            (len(rows), self._sequence + self._lookahead), dtype=torch.int64, device="cpu"
        )
        view = batch.numpy()
        for number, row in enumerate(rows):
            view[number] = row
        return batch
