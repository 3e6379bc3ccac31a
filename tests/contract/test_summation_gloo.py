"""The order in which gloo adds, with real processes."""

from __future__ import annotations

import pytest
from group_programs import in_world

DOWN = {
    2: "one order: 0+1",
    4: "ring down, 4 chunks of {}: ((2+3)+1)+0, ((0+3)+2)+1, ((0+1)+3)+2, ((1+2)+0)+3",
    8: "ring down, 8 chunks of {}: ((((((6+7)+5)+4)+3)+2)+1)+0, ...",
}


@pytest.mark.parametrize("world", [2, 4, pytest.param(8, marks=pytest.mark.long)])
def test_gloo_adds_in_a_ring_that_ends_at_the_owner_of_the_chunk(world):
    said = in_world(world, "signature")
    sums = said[0]["plain"]["sums"]
    for size, words in sums["all_reduce"]["float32"].items():
        order, _, digest = words.rpartition(" #")
        assert order == DOWN[world].format(int(size) // 4 // world)
        assert len(digest) == 12
    assert list(sums["all_reduce"]["float32"]) == ["1024", "65536", "1048576"]
    # Reduce-scatter gives the slice of an all-reduce.
    assert sums["reduce_scatter"]["float32"]["65536"] == sums["all_reduce"]["float32"]["65536"]
    # Every rank says the same, and again; and added in the decoded order other values give the
    # bits that gloo gives: 4 sums, every element of each.
    assert [rank["plain"] for rank in said] == [said[0]["plain"]] * world
    assert [rank["repeats"] for rank in said] == [True] * world
    assert [rank["as_decoded"] for rank in said] == [[True] * 4] * world


def test_ddp_runs_differ_where_their_sums_were_predicted_to():
    for said in in_world(4, "ddp"):
        assert said["plans"]["one bucket"] == [13824]
        assert said["plans"]["small buckets"] == [4608] * 3
        # Two thirds of the elements move to a chunk that starts at another rank.
        assert said["moved"]["small buckets"] == 9216
        assert said["predicted"] == {
            "one bucket": True,
            "again": True,
            "small buckets": False,
            "turned group": False,
        }
        assert said["same_bits"] == said["predicted"]
        # Control: a signature with another order predicts otherwise, and the bits refute it.
        assert said["predicted_by_a_false_signature"] != said["same_bits"]


def test_two_ranks_have_one_order_whatever_their_buckets():
    for said in in_world(2, "ddp"):
        assert said["plans"]["small buckets"] == [4608] * 3
        assert set(said["predicted"].values()) == {True}
        assert said["same_bits"] == said["predicted"]
