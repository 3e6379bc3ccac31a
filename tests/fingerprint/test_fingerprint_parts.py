"""Parts cut anywhere add up to the whole, in any order; what is lost or doubled is an error."""

import random
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bitstep.errors import FingerprintError
from bitstep.fingerprint import complete, fallback, fingerprint, merge, part, tensors
from bitstep.fingerprint.definition import MASK, sum_of
from bitstep.fingerprint.places import runs
from bitstep.records import Box, FlatRange, Part

DTYPES = ["uint8", "bfloat16", "float32", "int64", "complex128", "float8_e4m3fn"]
shapes = st.lists(st.integers(0, 7), max_size=4).map(tuple)


def tensor_of(dtype, shape, seed):
    itemsize = getattr(torch, dtype).itemsize
    count = int(np.prod(shape, dtype=np.int64)) * itemsize
    data = np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)
    if not count:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.from_numpy(data).view(getattr(torch, dtype)).view(shape)


def boxes(tensor, draw):
    """Cut every dimension at random places, empty pieces allowed."""
    edges = []
    for size in tensor.shape:
        cuts = draw(st.lists(st.integers(0, size), max_size=2))
        bounds = sorted([0, size, *cuts])
        edges.append(list(pairwise(bounds)))
    for slices in product(*edges):
        local = tensor[tuple(slice(a, b) for a, b in slices)]
        offsets = tuple(a for a, _ in slices)
        yield local, Box(tuple(tensor.shape), offsets, tuple(local.shape))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), shape=shapes, dtype=st.sampled_from(DTYPES), table=st.sampled_from([1, 2]))
def test_boxes_cut_along_all_dimensions_add_up_on_both_paths(data, shape, dtype, table):
    tensor = tensor_of(dtype, shape, seed=len(shape))
    expected = fingerprint(tensor, table=table)
    parts, on_fallback = [], 0
    for local, box in boxes(tensor, data.draw):
        compact = local.clone(memory_format=torch.contiguous_format)
        parts.append(part(local, box, table=table))
        assert part(compact, box, table=table) == parts[-1]
        on_fallback += int(fallback.box_sum(tensors._resolved(local), box, 0, table))
    random.Random(0).shuffle(parts)
    assert complete(merge(parts), dtype, shape) == expected
    assert on_fallback & MASK == expected.sum


@settings(max_examples=40, deadline=None)
@given(data=st.data(), limit=st.sampled_from([1, 5, 300]))
def test_boxes_of_a_tensor_of_many_blocks(data, limit):
    tensor = tensor_of("bfloat16", (9, 31, 203), seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "_COPY_LIMIT", limit << 10)
        patch.setattr(fallback, "_PIECE", limit << 10)
        parts, on_fallback = [], 0
        for local, box in boxes(tensor, data.draw):
            parts.append(part(local, box))
            on_fallback += int(fallback.box_sum(tensors._resolved(local), box, 0, 1))
    assert complete(merge(parts), "bfloat16", tensor.shape) == fingerprint(tensor)
    assert on_fallback & MASK == fingerprint(tensor).sum


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    shape=st.sampled_from([(5,), (3, 7), (4, 2, 3), (130, 70), ()]),
    dtype=st.sampled_from(DTYPES),
)
def test_flat_ranges_cut_at_any_byte_add_up(data, shape, dtype):
    tensor = tensor_of(dtype, shape, seed=2)
    flat = tensor.view(-1).view(torch.uint8)
    cuts = data.draw(st.lists(st.integers(0, len(flat)), max_size=6))
    bounds = sorted([0, len(flat), *cuts])
    parts = [part(flat[a:b], FlatRange(shape, a, b - a)) for a, b in pairwise(bounds)]
    random.Random(1).shuffle(parts)
    assert complete(merge(parts), dtype, shape) == fingerprint(tensor)


def test_flat_ranges_of_elements_may_be_strided():
    tensor = torch.arange(5000, dtype=torch.int32).reshape(50, 100)
    local = tensor.view(-1)[1000:4000].view(30, 100).t().contiguous().t()
    assert not local.is_contiguous()
    place = FlatRange((50, 100), 4000, 12000)
    assert part(local, place) == part(tensor.view(-1)[1000:4000], place)


def test_boxes_may_be_cut_again():
    tensor = torch.randn(12, 10)
    outer = tensor[3:11]
    nested = [
        part(outer[a:b, c:d], Box((12, 10), (3 + a, c), (b - a, d - c)))
        for (a, b), (c, d) in product(((0, 5), (5, 8)), ((0, 1), (1, 10)))
    ]
    assert merge(nested) == part(outer, Box((12, 10), (3, 0), (8, 10)))


def test_boxes_and_flat_ranges_are_parts_of_one_sum():
    tensor = torch.randn(6, 8, dtype=torch.float64)
    flat = tensor.view(-1).view(torch.uint8)
    upper = part(tensor[:2], Box((6, 8), (0, 0), (2, 8)))
    lower = part(flat[128:], FlatRange((6, 8), 128, 256))
    assert complete(merge([lower, upper]), "float64", (6, 8)) == fingerprint(tensor)


def test_a_place_far_away_needs_no_memory():
    far = Box((1 << 20, 1 << 20, 3), (1 << 19, 5, 1), (1, 2, 2))
    local = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    first = ((1 << 19) * (1 << 20) + 5) * 3 + 1
    expected = [sum_of(local[0, row].numpy().tobytes(), 4 * (first + 3 * row)) for row in (0, 1)]
    assert part(local, far) == Part(sum(expected) & MASK, 16)
    assert int(fallback.box_sum(local.view(torch.int32), far, 0, 1)) & MASK == sum(expected) & MASK


def test_a_part_at_another_place_is_another_sum():
    local = torch.ones(2, 3)
    sums = {part(local, Box((8, 3), (row, 0), (2, 3))).sum for row in range(7)}
    assert len(sums) == 7


def test_a_lost_or_doubled_shard_is_an_error():
    tensor = torch.zeros(4, 3)
    shards = [part(tensor[i : i + 1], Box((4, 3), (i, 0), (1, 3))) for i in range(4)]
    with pytest.raises(FingerprintError, match=r"36 bytes .* has 48: a part is missing"):
        complete(merge(shards[:3]), "float32", (4, 3))
    with pytest.raises(FingerprintError, match=r"60 bytes .* has 48: a part was counted twice"):
        complete(merge([*shards, shards[1]]), "float32", (4, 3))


def test_one_lost_and_one_doubled_shard_are_another_sum():
    tensor = torch.randn(4, 3)
    shards = [part(tensor[i : i + 1], Box((4, 3), (i, 0), (1, 3))) for i in range(4)]
    wrong = complete(merge([*shards[:3], shards[0]]), "float32", (4, 3))
    assert wrong.sum != fingerprint(tensor).sum


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        (Box((4, 6), (1, 2), (2, 3)), (12, [(2, 24)])),
        (Box((4, 6), (1, 0), (2, 6)), (48, [])),
        (Box((4, 6, 2), (0, 1, 0), (4, 3, 2)), (24, [(4, 48)])),
        (Box((4, 5, 6), (0, 0, 1), (4, 5, 2)), (8, [(20, 24)])),
        (Box((4, 5, 6), (0, 1, 1), (4, 3, 2)), (8, [(3, 24), (4, 120)])),
        (Box((4, 5, 6), (2, 1, 3), (1, 3, 1)), (4, [(3, 24)])),
        (Box((), (), ()), (4, [])),
    ],
)
def test_runs_are_as_few_as_can_be(box, expected):
    assert runs(box, 4) == expected
