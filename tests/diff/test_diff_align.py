"""Rows are paired where they belong, whatever one run has more."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitstep.diff import sequences
from bitstep.diff.rows import shape_sums
from bitstep.diff.slots import Class, class_of, named
from bitstep.diff.spread import members_of


def common_length(a: list[int], b: list[int]) -> int:
    """The length of a longest common subsequence, the slow way."""
    best = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, one in enumerate(a):
        for j, two in enumerate(b):
            longer = max(best[i][j + 1], best[i + 1][j])
            best[i + 1][j + 1] = best[i][j] + 1 if one == two else longer
    return best[-1][-1]


WORDS = st.lists(st.integers(0, 3), max_size=12)


@given(WORDS, WORDS)
def test_alignment_pairs_equal_names_in_order(a: list[int], b: list[int]) -> None:
    contents = [[10 * word + at % 2 for at, word in enumerate(words)] for words in (a, b)]
    marks = [[word if word == 3 else -1 for word in words] for words in (a, b)]
    pairs = sequences.align(a, b, *contents, *marks)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(i < k and j < m for (i, j), (k, m) in pairwise(pairs))


@given(WORDS, WORDS)
def test_between_anchors_it_is_a_longest_common_subsequence(a: list[int], b: list[int]) -> None:
    pairs = sequences._common(a, b, (0, len(a), 0, len(b)))
    assert len(pairs) == common_length(a, b)


def test_a_mark_keeps_a_draw_from_being_taken_for_another() -> None:
    """One more draw, before an equal one: by contents it would be the last that is too many."""
    names = [1, 1], [1, 1, 1]
    contents = [70, 71], [70, 71, 72]
    marks = [5, 5], [9, 5, 5]
    assert sequences.align(*names, *contents, *marks) == [(0, 1), (1, 2)]
    assert sequences.align(*names, *contents, [-1] * 2, [-1] * 3) == [(0, 0), (1, 1)]


def test_beyond_the_band_nothing_is_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "BAND", 3)
    a, b = [1, 2] * 4, [3] * 8
    assert sequences._common(a, b, (0, 8, 0, 8)) == []


SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=2, max_size=8)


@given(SHAPES)
def test_shapes_have_equal_numbers_only_if_they_are_equal(shapes: list[list[int]]) -> None:
    column = pa.array(shapes, pa.list_(pa.int64()))
    sums = shape_sums(column)
    again = shape_sums(column.slice(1))
    np.testing.assert_array_equal(sums[1:], again)
    for one, sum_one in zip(shapes, sums, strict=True):
        for two, sum_two in zip(shapes, sums, strict=True):
            assert (one == two) == (sum_one == sum_two)


@pytest.mark.parametrize(
    ("slot", "kind"),
    [
        ("in.0[Net.0.weight:grad]", Class.INPUT), ("grad_out.0", Class.INPUT),
        ("mutated.3", Class.OUTPUT), ("args", Class.ARGS), ("args.lr", Class.HYPER),
        ("at.train.py:3", Class.AT), ("count.ops", Class.COUNT), ("attr", Class.BUFFER),
        ("state.exp_avg", Class.STATE), ("root", Class.ROOT), ("something new", Class.OUTPUT),
    ],
)  # fmt: skip
def test_class_of_a_slot(slot: str, kind: Class) -> None:
    assert class_of(slot) is kind


def test_names_in_list_arguments() -> None:
    assert named("in.0[Net.0.weight:grad]") == ("Net.0.weight", "grad")
    assert named("mutated.1[Net.0.weight]") == ("Net.0.weight", "param")
    assert named("in.0[12]") is None
    assert named("in.0") is None


def test_members() -> None:
    assert members_of("0,1,4-6") == (0, 1, 4, 5, 6)
    assert members_of("Net.0") == ()
    assert members_of("0-99999999999") == ()
