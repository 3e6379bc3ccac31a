import random
from pathlib import Path

import numpy as np
import pytest
import torch

from bitstep.data.corpus import Corpus
from bitstep.data.loader import Loader
from bitstep.data.permutation import place
from bitstep.errors import DataError
from bitstep.state.keys import key

SEQUENCE, LOOKAHEAD = 8, 2


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(40):
        (folder / f"{number:02}.txt").write_bytes(bytes(range(number, number + 9)))
    return Corpus.read(folder, held_out=0.3)


def make(corpus: Corpus, split: str = "train", seed: int = 7) -> Loader:
    return Loader(corpus, split, seed=seed, sequence=SEQUENCE, lookahead=LOOKAHEAD)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def loader(corpus: Corpus) -> Loader:
    return make(corpus)


def test_a_batch_is_rows_of_the_stream_in_int64(corpus: Corpus, loader: Loader) -> None:
    batch = loader.tokens(3, 4)
    assert batch.shape == (4, SEQUENCE + LOOKAHEAD)
    assert batch.dtype == torch.int64
    for row, position in zip(batch.tolist(), range(3, 7), strict=True):
        expected = corpus.train.sequence(loader.index(position), SEQUENCE, LOOKAHEAD)
        assert row == expected.tolist()


def test_the_order_is_the_keyed_permutation_of_each_epoch(loader: Loader) -> None:
    n = loader.sequences_per_epoch
    for position in range(3 * n):
        within = place(position % n, n, key(7, "data", position // n))
        assert loader.index(position) == within


def test_an_epoch_shows_each_sequence_once_and_the_next_in_another_order(loader: Loader) -> None:
    n = loader.sequences_per_epoch
    epochs = [[loader.index(e * n + i) for i in range(n)] for e in range(3)]
    assert all(sorted(epoch) == list(range(n)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_another_seed_is_another_order(corpus: Corpus, loader: Loader) -> None:
    n = loader.sequences_per_epoch
    other = make(corpus, seed=8)
    assert [loader.index(p) for p in range(n)] != [other.index(p) for p in range(n)]
    assert loader.order_digest() != other.order_digest()
    assert loader.order_digest() == make(corpus).order_digest()


def test_a_batch_may_cross_the_end_of_an_epoch(loader: Loader) -> None:
    n = loader.sequences_per_epoch
    across = loader.tokens(n - 2, 5)
    assert across[:2].equal(loader.tokens(n - 2, 2))
    assert across[2:].equal(loader.tokens(n, 3))


def test_a_fresh_loader_at_any_position_continues_the_uninterrupted_order(corpus: Corpus) -> None:
    uninterrupted = make(corpus).tokens(0, 90)
    for position in range(90):
        assert make(corpus).tokens(position, 90 - position).equal(uninterrupted[position:])


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_any_partition_over_processes_gives_the_same_ranks(loader: Loader, processes: int) -> None:
    ranks, sequences, position = 8, 3, 41
    shown = {
        v: loader.tokens(position + v * sequences, sequences)
        for process in range(processes)
        for v in range(process, ranks, processes)
    }
    whole = loader.tokens(position, ranks * sequences)
    assert torch.cat([shown[v] for v in range(ranks)]).equal(whole)


def test_documents_are_those_of_the_tokens(corpus: Corpus, loader: Loader) -> None:
    for position, documents in enumerate(loader.documents(0, 30)):
        assert documents == corpus.train.documents_of(loader.index(position), SEQUENCE)


def test_positions_far_away_are_as_near_as_the_first(loader: Loader) -> None:
    assert loader.tokens(10**18, 2).shape == (2, SEQUENCE + LOOKAHEAD)


def test_held_out_batches_go_through_the_split_in_order_and_start_over(corpus: Corpus) -> None:
    loader = make(corpus, "held-out")
    n = loader.sequences_per_epoch
    shown = torch.cat([loader.held_out(batch, 3) for batch in range(n)])
    rows = [corpus.held_out.sequence(i % n, SEQUENCE, LOOKAHEAD).tolist() for i in range(3 * n)]
    assert shown.tolist() == rows
    assert loader.held_out(5, 3).equal(shown[15:18])


def test_no_generator_is_drawn_from_or_matters(corpus: Corpus) -> None:
    def states() -> tuple[object, ...]:
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()

    def everything() -> list[object]:
        loader = make(corpus)
        held_out = make(corpus, "held-out").held_out(1, 4)
        return [loader.tokens(5, 60).tolist(), held_out.tolist(), loader.order_digest()]

    before = states()
    first = everything()
    assert states() == before
    torch.rand(3)
    np.random.rand(3)
    random.random()
    assert states() != before
    assert everything() == first


def test_a_batch_is_a_copy(loader: Loader) -> None:
    batch = loader.tokens(0, 1)
    batch.zero_()
    assert not loader.tokens(0, 1).equal(batch)


def test_negative_positions_are_refused(loader: Loader) -> None:
    for call in (loader.tokens, loader.documents):
        with pytest.raises(DataError, match="data position -1"):
            call(-1, 2)
    with pytest.raises(DataError, match="held-out batch -1"):
        loader.held_out(-1, 2)


def test_a_split_without_a_sequence_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"too short")
    corpus = Corpus.read(tmp_path)
    for split in ("train", "held-out"):
        with pytest.raises(DataError, match=f"the {split} split has"):
            Loader(corpus, split, seed=1, sequence=10, lookahead=1)  # type: ignore[arg-type]
