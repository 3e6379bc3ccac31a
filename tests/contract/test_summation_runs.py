"""Where in a buffer the order changes."""

from __future__ import annotations

import numpy as np
import pytest
from test_summation_decode import added, results

from bitstep.contract.summation_decode import probes, relabelled, ring, sizes_in, sums_of
from bitstep.contract.summation_runs import Run, filled, rounds_for, runs_of

BALANCED = (((0, 1), (2, 3)), ((4, 5), (6, 7)))


def summed(ranks, elements, parts):
    """Sums of filled buffers [rounds, elements], added in the order of each (start, end, tree)."""
    rounds = rounds_for(elements, ranks)
    leaves = [np.stack(list(filled(probes(ranks, r), elements, rounds))) for r in range(ranks)]
    total = np.full((rounds, elements), np.nan, dtype=np.float32)
    for start, end, tree in parts:
        total[:, start:end] = added(tree, [leaf[:, start:end] for leaf in leaves])
    return total


def ring_tree(ranks, start, step=-1):
    tree = start % ranks
    for later in range(1, ranks):
        tree = (tree, (start + step * later) % ranks)
    return tree


def ring_parts(ranks, elements, chunk):
    cuts = [min(elements, chunk * rank) for rank in range(ranks + 1)]
    return [(cuts[r], cuts[r + 1], ring_tree(ranks, r - 1)) for r in range(ranks)]


@pytest.mark.parametrize("elements", [256, 250, 1000, 16384, 16383, 262144])
@pytest.mark.parametrize("ranks", [3, 4, 8, 16])
def test_the_chunks_of_a_ring_are_found_to_the_element(ranks, elements):
    chunk = 2 * -(-elements // (2 * ranks))
    parts = ring_parts(ranks, elements, chunk)
    runs = runs_of(summed(ranks, elements, parts), ranks, range(ranks))
    assert [(run.start, run.end) for run in runs] == [part[:2] for part in parts]
    names = [f"ring down from {(rank - 1) % ranks}" for rank in range(ranks)]
    if ranks > 3:
        assert [run.name for run in runs] == names


def test_one_order_is_one_run():
    runs = runs_of(summed(8, 5000, [(0, 5000, BALANCED)]), 8, range(8))
    assert runs == (Run(0, 5000, "((0+1)+(2+3))+((4+5)+(6+7))", "balanced tree"),)


def test_two_orders_that_share_nothing_are_two_runs():
    parts = [(0, 3000, BALANCED), (3000, 5000, ring_tree(8, 5, 1))]
    runs = runs_of(summed(8, 5000, parts), 8, range(8))
    assert [run.name for run in runs] == ["balanced tree", "ring up from 5"]
    assert abs(runs[1].start - 3000) <= 28  # only equal chunks are found to the element


def test_members_are_named_by_their_global_ranks():
    (run,) = runs_of(summed(4, 600, [(0, 600, ring_tree(4, 3))]), 4, [9, 2, 5, 3])
    assert run.order == "((3+5)+2)+9"
    assert run.name == "ring down from 3"


def test_what_no_order_explains_ends_in_a_run_without_one():
    sums = summed(4, 600, [(0, 600, ring_tree(4, 3))])
    sums[:, 400:] = 0.5
    assert runs_of(sums, 4, range(4)) == (
        Run(0, 400, "((2+3)+1)+0", "ring down from 3"),
        Run(400, 600, "", ""),
    )


def test_sums_that_round_nowhere_are_not_read():
    sums = np.full((1, 600), 2.0, dtype=np.float32)
    assert runs_of(sums, 4, range(4)) == (Run(0, 600, "", ""),)


def test_an_order_that_never_stops_changing_is_given_up():
    trees = [results(ring_tree(3, start), 3) for start in range(3)]
    sums = np.concatenate([np.tile(tree, 2) for tree in trees] * 500)[None]
    runs = runs_of(sums, 3, range(3))
    assert len(runs) == 4 * 3 + 16 + 1
    assert runs[-1] == Run(runs[-2].end, 9000, "", "")


def test_a_small_buffer_is_summed_more_than_once():
    assert [rounds_for(n, 8) for n in (64, 256, 448, 16384)] == [7, 2, 1, 1]
    assert rounds_for(256, 64) == 8  # and no more often than this


def test_more_than_64_ranks_are_read_if_they_add_in_a_ring():
    elements, ranks = 100_000, 100
    chunk = 1000
    starts = [(rank - 1) % ranks for rank in range(ranks)]
    sums = np.concatenate(
        [
            np.resize(np.roll(sums_of(ring(ranks, start, -1), ranks), -chunk * rank), chunk)
            for rank, start in enumerate(starts)
        ]
    )[None]
    runs = runs_of(sums, ranks, range(ranks))
    assert [run.name for run in runs] == [f"ring down from {start}" for start in starts]
    assert [run.start for run in runs] == list(range(0, elements, chunk))


def test_more_than_64_ranks_in_an_order_without_a_name_are_not_read():
    tree = ((0, 2), 1)
    for rank in range(3, 70):
        tree = (tree, rank)
    sizes = sizes_in(results(relabelled(tree, range(70)), 70), 70)
    assert [run.order for run in runs_of(sums_of(sizes, 70)[None], 70, range(70))] == [""]
