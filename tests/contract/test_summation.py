"""What signatures say, and what two of them predict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bitstep.contract.summation import (
    Signature,
    Sums,
    other_order,
    predict,
    predict_manifests,
    ranks_text,
    words_of,
)
from bitstep.contract.summation_runs import Run
from bitstep.errors import ContractError

RING = ("((2+3)+1)+0", "((0+3)+2)+1", "((0+1)+3)+2", "((1+2)+0)+3")


def ring(elements):
    chunk = elements // 4
    names = [f"ring down from {rank}" for rank in (3, 0, 1, 2)]
    return tuple(Run(k * chunk, (k + 1) * chunk, RING[k], names[k]) for k in range(4))


def sums(runs, digest="aaaaaaaaaaaa", op="all_reduce"):
    elements = runs[-1].end
    return Sums(op, "float32", elements, tuple(runs), digest, words_of(runs, digest, 4))


def signature(*of, **others):
    return Signature((0, 1, 2, 3), "gloo", "cpu", of, **others)


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (ring(256), "ring down, 4 chunks of 64: ((2+3)+1)+0, ((0+3)+2)+1, ((0+1)+3)+2, ..."),
        ([Run(0, 9, "(0+1)+(2+3)", "balanced tree")], "balanced tree: (0+1)+(2+3)"),
        ([Run(0, 9, "(0+3)+(1+2)", "")], "one order: (0+3)+(1+2)"),
        (
            [Run(0, 5, "(0+3)+(1+2)", ""), Run(5, 9, "(0+1)+(2+3)", "balanced tree")],
            "several orders, 2 chunks of 5: (0+3)+(1+2), (0+1)+(2+3)",
        ),
        ([*ring(256), Run(256, 260, "", "")], "not read"),
    ],
)
def test_a_signature_is_a_line_for_a_person(runs, words):
    line = words_of(runs, "0123456789ab", 4)
    assert line.endswith(" #0123456789ab")
    assert line.startswith(words.removesuffix("..."))


def test_a_manifest_gets_ranks_backend_and_a_line_per_size():
    table = signature(sums(ring(256)), sums(ring(512))).plain()
    assert {key: table[key] for key in ("ranks", "backend", "device", "measured")} == {
        "ranks": "0-3",
        "backend": "gloo",
        "device": "cpu",
        "measured": "yes",
    }
    assert list(table["sums"]["all_reduce"]["float32"]) == ["1024", "2048"]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([5], "5"),
        ([0, 1], "0-1"),
        ([0, 4], "0_4"),
        ([0, 4, 8], "0-8by4"),
        ([1, 2, 5], "1_2_5"),
        ([3, 2, 1], "3_2_1"),
        (range(2432), "0-2431"),
    ],
)
def test_ranks_are_written_short_and_can_be_part_of_a_key(ranks, text):
    assert ranks_text(list(ranks)) == text


def test_equal_signatures_predict_the_same_bits():
    said = predict(signature(sums(ring(256))), signature(sums(ring(256))))
    assert (said.verdict, said.where) == ("same", ())


def test_a_size_that_is_added_in_another_order_is_named():
    a = signature(sums(ring(256)), sums(ring(512), "bbbbbbbbbbbb"))
    b = signature(sums(ring(256)), sums(ring(512), "cccccccccccc"))
    said = predict(a, b)
    assert (said.verdict, said.where) == ("different", ("all_reduce.float32.2048",))
    assert said.why == "the group adds in another order: sums differ"


@pytest.mark.parametrize(
    ("b", "why"),
    [
        (signature(problem="no device"), "was a group measured: no: no device"),
        (signature(sums(ring(256)), disagree=True), "the members got different sums"),
        (signature(sums(ring(512))), "no size was measured in both"),
    ],
)
def test_without_two_measurements_nothing_is_predicted(b, why):
    for said in (predict(signature(sums(ring(256))), b), predict(b, signature(sums(ring(256))))):
        assert said.verdict == "cannot tell"
        assert why in said.why


def test_a_group_of_one_adds_nothing_and_so_the_same():
    alone = Signature((3,), "gloo", "cpu")
    assert predict(alone, alone).verdict == "same"
    assert predict(alone, signature(sums(ring(256)))).verdict == "cannot tell"


def keys(prefix, *tables):
    """The dotted keys of groups, as they stand in a manifest."""
    flat = {}

    def walk(table, at):
        for name, value in table.items():
            if isinstance(value, dict):
                walk(value, f"{at}{name}.")
            else:
                flat[f"{at}{name}"] = value

    walk({table["ranks"]: table for table in tables}, prefix)
    return flat


@pytest.mark.parametrize("prefix", ["groups.", "layout.physical.groups."])
def test_two_manifests_predict_each_group_that_both_have(prefix):
    dp, tp = signature(sums(ring(256))), replace(signature(sums(ring(256))), ranks=(0, 1))
    other = signature(sums(ring(256), "ffffffffffff"))
    a, b = keys(prefix, dp.plain(), tp.plain()), keys(prefix, other.plain())
    said = predict_manifests({"software.torch": "2.13", **a}, b)
    assert {name: of.verdict for name, of in said.items()} == {"0-3": "different"}


def test_keys_that_make_no_group_predict_nothing():
    hostile = {
        "groups.0-3.sums": "text where a table should be",
        "groups.0-3.sums.all_reduce.float32.1024": "no digest",
        "groups.0-3.measured": "yes",
        "groups.0-3": 7,
        "groups": [],
        "groups.x.sums.all_reduce": "a leaf too early",
        "groups.x.measured": "yes",
    }
    said = predict_manifests(hostile, hostile)
    assert {of.verdict for of in said.values()} == {"cannot tell"}


def test_small_buckets_move_the_elements_whose_chunk_is_another():
    known = signature(sums(ring(256)), sums(ring(128)))
    # One ring over 256 against two over 128: only a quarter of each bucket keeps its chunk's start.
    assert other_order(known, [256], [256]) == 0
    assert other_order(known, [256], [128, 128]) == 192
    assert other_order(known, [128, 128], [256]) == 192


def test_one_order_for_all_elements_makes_buckets_harmless():
    runs = [Run(0, 256, "((0+1)+2)+3", "")], [Run(0, 64, "((0+1)+2)+3", "")]
    assert other_order(signature(*map(sums, runs)), [256], [64] * 4) == 0


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ([256], [128], "two cuts of one"),
        ([256], [200, 56], "a bucket of 200 elements was not measured"),
        ([256], [64] * 4, "could not be read"),
    ],
)
def test_a_bucket_of_an_unknown_order_is_an_error(a, b, said):
    unread = sums([Run(0, 64, "", "")])
    with pytest.raises(ContractError, match=said):
        other_order(signature(sums(ring(256)), unread), a, b)
