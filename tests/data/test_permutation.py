import itertools
import math
import subprocess
import sys

import numpy as np
import pytest

from bitstep.data.permutation import LARGEST_SIZE, place, places
from bitstep.errors import DataError
from bitstep.state.keys import key

KEYS = (0, 1, 2**63, 2**64 - 1, key("order", 5))


@pytest.mark.parametrize("permutation", KEYS)
def test_every_size_is_a_bijection_and_scalar_equals_vector(permutation: int) -> None:
    for size in range(1, 301):
        scalar = [place(index, size, permutation) for index in range(size)]
        assert sorted(scalar) == list(range(size))
        assert places(np.arange(size), size, permutation).tolist() == scalar


def test_golden_values() -> None:
    assert [place(index, 10, 0) for index in range(10)] == [3, 0, 8, 9, 2, 5, 1, 6, 4, 7]
    assert [place(index, 10, 1) for index in range(10)] == [2, 0, 5, 8, 6, 3, 1, 7, 4, 9]
    assert [place(index, 117_146, key(1, "data", 0)) for index in range(4)] == [
        33420,
        13453,
        80467,
        51317,
    ]
    assert place(2**62 - 1, 2**62, 2**64 - 1) == 1262287572459413616


def test_the_largest_size_is_exact_in_both_forms() -> None:
    indices = [0, 1, LARGEST_SIZE // 3, LARGEST_SIZE - 1]
    vector = places(np.array(indices), LARGEST_SIZE, 12345).tolist()
    assert vector == [place(index, LARGEST_SIZE, 12345) for index in indices]
    assert all(0 <= value < LARGEST_SIZE for value in vector)


def test_vector_keeps_the_shape_and_takes_none() -> None:
    assert places(np.arange(6).reshape(2, 3), 100, 1).shape == (2, 3)
    assert places([], 100, 1).shape == (0,)


def test_another_key_is_another_order() -> None:
    orders = {tuple(places(np.arange(50), 50, key("epoch", e)).tolist()) for e in range(100)}
    assert len(orders) == 100


def _excess(counts: list[int], expected: float) -> float:
    """Chi-square of the counts, in standard deviations above its mean."""
    freedom = len(counts) - 1
    chi_square = sum((count - expected) ** 2 / expected for count in counts)
    return (chi_square - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_orders_of_a_small_range_are_equally_frequent(size: int) -> None:
    draws = 6000
    counts = dict.fromkeys(itertools.permutations(range(size)), 0)
    for draw in range(draws):
        counts[tuple(place(index, size, key("small", draw)) for index in range(size))] += 1
    assert _excess(list(counts.values()), draws / len(counts)) < 3


@pytest.mark.parametrize("size", [16, 100, 1000])
def test_neighbours_go_to_unrelated_places(size: int) -> None:
    draws = 200
    counts = np.zeros(size, dtype=int)
    for draw in range(draws):
        order = places(np.arange(size), size, key("neighbours", draw))
        np.add.at(counts, np.diff(order) % size, 1)
    assert counts[0] == 0
    assert _excess(counts[1:].tolist(), draws * (size - 1) / (size - 1)) < 3


@pytest.mark.parametrize(
    ("index", "size", "named"),
    [(0, 0, "0 elements"), (0, 2**62 + 1, "elements"), (-1, 5, "index -1"), (5, 5, "index 5")],
)
def test_what_is_outside_is_refused(index: int, size: int, named: str) -> None:
    with pytest.raises(DataError, match=named):
        place(index, size, 1)
    with pytest.raises(DataError, match=named):
        places([index], size, 1)


def test_permutation_and_corpus_do_not_import_torch() -> None:
    modules = "bitstep.data.permutation, bitstep.data.corpus"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
