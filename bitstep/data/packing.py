"""The samples that Megatron's GPT dataset shows, in its order: for those who come from there.

1. The sequences of the dataset, as often as epochs are needed, are shuffled as one list.
2. Their tokens, one after another, are one stream; sample s is the tokens from s * length on,
   length + 1 of them: the last is the target of the one before it, and the first of sample s + 1.
3. A second shuffle gives the order in which samples are shown.
4. Where less than 80% of the last epoch is used, that epoch is shuffled apart, so that no part of
   the data is seen once more than another before the end.

Both shuffles are NumPy's `RandomState`, whose stream is frozen. Every sequence of the file counts
as a document, as it does there. Equal to megatron-core 0.16.1 for training data.

>>> samples = GptSamples(IndexedDataset.open("data/pile"), seed=1234, length=1024, samples=20_000)
>>> samples[0].shape
(1025,)
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bitstep.data.indexed import IndexedDataset
from bitstep.errors import DataError

APART = 0.80
"""Share of an epoch's samples below which the last epoch is shuffled apart."""
LARGEST_SEED = 2**32 - 1
LARGEST_INDEX = 2**31 - 1
"""Of a document, which is an int32 there and here."""


class GptSamples:
    """Samples of `length` + 1 tokens by the order of (seed, length, samples). Holds no position.

    In memory are 12 bytes for each document of each epoch and 4 for each sample (8 from 2^32 - 2
    samples on); the tokens stay in the mapped file.
    """

    def __init__(
        self,
        dataset: IndexedDataset,
        *,
        seed: int,
        length: int,
        samples: int,
        documents: range | None = None,
    ) -> None:
        """`samples` are those that the run will use; the order depends on it, as it does there.

        `documents` are the sequences of the file to take, one range of `split_ranges`; all by
        default. Raises DataError for numbers that cannot be meant and for a range without tokens.
        """
        chosen = range(len(dataset)) if documents is None else documents
        _check(dataset, chosen, seed, length, samples)
        lengths = dataset.lengths[chosen.start : chosen.stop]
        epoch = int(lengths.sum(dtype=np.int64))
        epochs = -(-(samples * length + 1) // epoch)
        apart = _samples_before_the_last_epoch(epochs, epoch, length, samples)
        random = np.random.RandomState(seed)
        # In this order: both shuffles draw from one stream.
        self._documents = _document_order(chosen, epochs, apart is not None, random)
        self._ends = np.cumsum(dataset.lengths[self._documents], dtype=np.int64)
        self._order = _sample_order((epochs * epoch - 1) // length, apart, random)
        self._dataset, self._length = dataset, length

    def __len__(self) -> int:
        """Samples in all epochs, at least those that were asked for."""
        return self._order.size

    def __getitem__(self, index: int) -> npt.NDArray[np.int64]:
        """[length + 1] tokens. Raises DataError outside 0 to len - 1."""
        first, last, start = self._locate(index)
        sample = np.empty(self._length + 1, np.int64)
        end, filled = int(self._ends[first]), 0
        for document in self._documents[first : last + 1]:
            tokens = self._dataset[int(document)]
            skipped = tokens.size - (end - start) if filled == 0 else 0
            part = tokens[skipped : skipped + sample.size - filled]
            sample[filled : filled + part.size] = part
            filled += part.size
        return sample

    def documents_of(self, index: int) -> tuple[int, ...]:
        """The sequences of the file that a sample takes tokens from, its last target included."""
        first, last, _ = self._locate(index)
        return tuple(int(d) for d in self._documents[first : last + 1] if self._dataset.lengths[d])

    def _locate(self, index: int) -> tuple[int, int, int]:
        if not 0 <= index < len(self):
            raise DataError(f"sample {index}: there are 0 to {len(self) - 1}; name one of them")
        start = int(self._order[index]) * self._length
        ends = (start, start + self._length)
        first, last = np.searchsorted(self._ends, ends, side="right")
        return int(first), int(last), start


def split_ranges(split: str, sequences: int) -> tuple[range, ...]:
    """The sequences of each part of a Megatron --split such as "969,30,1": train, valid, test.

    Raises DataError for what is not three shares at most, or adds up to nothing.
    """
    try:
        shares = [float(word) for word in split.split(",")]
    except ValueError:
        shares = []
    if not 1 <= len(shares) <= 3 or not 0 < sum(shares) < np.inf or min(shares) < 0:
        raise DataError(f"split {split!r}: write the shares of train, valid, test, as in 969,30,1")
    shares += [0.0] * (3 - len(shares))
    ends, total = [0.0], sum(shares)
    for share in shares:  # the same roundings in the same order as there
        ends.append(ends[-1] + share / total)
    places = [round(end * float(sequences)) for end in ends]
    return tuple(range(a, b) for a, b in pairwise(places))


def _check(dataset: IndexedDataset, chosen: range, seed: int, length: int, samples: int) -> None:
    if not 0 <= seed <= LARGEST_SEED:
        raise DataError(f"seed {seed}: this order takes one from 0 to {LARGEST_SEED}")
    if length < 1 or samples < 1:
        raise DataError(f"{samples} samples of {length} tokens: ask for at least one of each")
    if chosen.step != 1 or chosen.start < 0 or chosen.stop > len(dataset):
        raise DataError(
            f"{chosen} of {dataset.prefix}: it has {len(dataset)} sequences; stay inside"
        )
    if chosen.stop > LARGEST_INDEX:
        raise DataError(f"{chosen} of {dataset.prefix}: this order takes {LARGEST_INDEX} at most")
    if not dataset.lengths[chosen.start : chosen.stop].any():
        raise DataError(f"{chosen} of {dataset.prefix} holds no token; choose a larger part")


def _samples_before_the_last_epoch(
    epochs: int, epoch: int, length: int, samples: int
) -> int | None:
    """Samples before the last epoch where that one is shuffled apart, else None."""
    if epochs == 1:
        return None
    before = ((epochs - 1) * epoch - 1) // length
    return before if samples - before < int(APART * ((epoch - 1) // length)) else None


def _document_order(
    chosen: range, epochs: int, apart: bool, random: np.random.RandomState
) -> npt.NDArray[np.int32]:
    once = np.arange(chosen.start, chosen.stop, dtype=np.int32)
    if not apart:
        order = np.tile(once, epochs)
        random.shuffle(order)
        return order
    return np.concatenate([_document_order(chosen, e, False, random) for e in (epochs - 1, 1)])


def _sample_order(
    total: int, apart: int | None, random: np.random.RandomState
) -> npt.NDArray[np.uint32] | npt.NDArray[np.int64]:
    small = total < LARGEST_SEED - 1
    order = np.arange(total, dtype=np.uint32) if small else np.arange(total, dtype=np.int64)
    for part in (order[:apart], order[apart:]) if apart is not None else (order,):
        random.shuffle(part)
    return order
