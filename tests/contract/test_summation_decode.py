"""Orders of summation, simulated and read back."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bitstep.contract.summation_decode import (
    balanced,
    expression,
    name_of,
    pairs,
    probes,
    relabelled,
    ring,
    sizes_in,
    sums_of,
    tree_of,
)


def every_tree(members):
    """All ways to add these, left and right not told apart."""
    if len(members) == 1:
        yield members[0]
        return
    first, *others = members
    for chosen in range(2 ** len(others) - 1):
        left = [first, *(m for at, m in enumerate(others) if chosen >> at & 1)]
        right = [m for at, m in enumerate(others) if not chosen >> at & 1]
        for one in every_tree(left):
            yield from ((one, other) for other in every_tree(right))


def any_tree(ranks, chance):
    trees = list(range(ranks))
    while len(trees) > 1:
        chance.shuffle(trees)
        trees.append((trees.pop(), trees.pop()))
    return trees[0]


def added(tree, leaves):
    """The float32 sum of the leaves in the order of the tree."""
    if isinstance(tree, int):
        return leaves[tree]
    return added(tree[0], leaves) + added(tree[1], leaves)


def results(tree, ranks, dtype=np.float32):
    return added(tree, [probes(ranks, rank).astype(dtype) for rank in range(ranks)])


@pytest.mark.parametrize(("ranks", "trees"), [(2, 1), (3, 3), (4, 15), (5, 105), (6, 945)])
def test_every_order_has_bits_of_its_own_and_is_read_back(ranks, trees):
    bits = set()
    for tree in every_tree(list(range(ranks))):
        result = results(tree, ranks)
        bits.add(result.tobytes())
        assert tree_of(sizes_in(result, ranks), ranks) == relabelled(tree, range(ranks))
    assert len(bits) == trees


@pytest.mark.parametrize("ranks", [7, 8, 13, 32, 64])
def test_any_order_of_up_to_64_ranks_is_read_back(ranks):
    chance = random.Random(ranks)
    for _ in range(20):
        tree = any_tree(ranks, chance)
        read = tree_of(sizes_in(results(tree, ranks), ranks), ranks)
        assert read == relabelled(tree, range(ranks))


def test_a_sum_that_rounds_nowhere_has_no_order():
    exact = [sum(int(probes(4, rank)[at]) for rank in range(4)) for at in range(6)]
    assert exact == [2] * 6
    assert tree_of(sizes_in(np.array(exact, dtype=np.float32), 4), 4) is None


@pytest.mark.parametrize(
    "wrong", [np.nan, np.inf, -1.0, 0.5, 3.0, 2.0**100], ids=lambda value: f"{value:g}"
)
def test_what_is_no_count_of_ranks_is_no_order(wrong):
    result = results(((0, 1), (2, 3)), 4)
    result[3] = wrong
    assert tree_of(sizes_in(result, 4), 4) is None


def test_sums_of_an_order_are_what_its_probes_add_up_to():
    tree = any_tree(9, random.Random(1))
    result = results(tree, 9)
    assert np.array_equal(sums_of(sizes_in(result, 9), 9), result)


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("ranks", [3, 4, 8, 100])
def test_a_ring_is_named_by_its_way_and_its_start(ranks, step):
    for start in range(0, ranks, 1 + ranks // 8):
        tree = start
        for later in range(1, ranks):
            tree = (tree, (start + step * later) % ranks)
        sizes = sizes_in(results(tree, ranks), ranks)
        assert np.array_equal(sizes, ring(ranks, start, step))
        way = "down" if ranks == 3 or step < 0 else "up"
        # Its first two commute, and three ranks have no way: whichever fits is said.
        assert name_of(sizes, ranks).startswith(f"ring {way} from ")


def test_balanced_trees_are_named_by_what_they_add_first():
    near = results((((0, 1), (2, 3)), ((4, 5), (6, 7))), 8)
    far = results((((0, 4), (2, 6)), ((1, 5), (3, 7))), 8)
    assert name_of(sizes_in(near, 8), 8) == "balanced tree"
    assert name_of(sizes_in(far, 8), 8) == "balanced tree, halves first"
    assert balanced(6, far=False) is None


def test_any_other_order_has_no_name():
    assert name_of(sizes_in(results(((0, 2), (1, 3)), 4), 4), 4) == "balanced tree, halves first"
    assert name_of(sizes_in(results(((0, 3), (1, 2)), 4), 4), 4) == ""
    assert name_of(sizes_in(results((0, 1), 2), 2), 2) == ""


def test_an_expression_names_the_members_and_does_not_depend_on_sides():
    trees = [((3, (1, 2)), 0), (0, (3, (2, 1)))]
    said = {expression(relabelled(tree, [5, 6, 7, 8]), range(10)) for tree in trees}
    assert said == {"((6+7)+8)+5"}
    assert expression(relabelled(((0, 1), (2, 3)), [3, 2, 1, 0]), range(4)) == "(0+1)+(2+3)"


def test_probes_grow_with_the_pairs_and_from_65_ranks_on_with_the_ranks():
    assert [len(pairs(ranks)) for ranks in (2, 4, 8, 64)] == [1, 6, 28, 2016]
    assert [len(pairs(ranks)) for ranks in (65, 2432)] == [127, 4861]
