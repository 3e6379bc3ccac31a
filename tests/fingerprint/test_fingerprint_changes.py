"""Changes that real faults make, and that weaker digests miss, are seen."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bitstep.fingerprint import fingerprint

SMALL = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "bool", "int32"]
both_tables = pytest.mark.parametrize("table", [1, 2])


def bits(*words, dtype=torch.float32):
    return torch.tensor(words, dtype=torch.int32).view(dtype)


def differ(one, other, table=1):
    return fingerprint(one, table=table).sum != fingerprint(other, table=table).sum


@settings(max_examples=300, deadline=None)
@given(
    dtype=st.sampled_from(SMALL),
    place=st.integers(0, 6999),
    change=st.integers(1, 2**32 - 1),
    table=st.sampled_from([1, 2]),
)
def test_any_change_of_one_element_of_up_to_4_bytes(dtype, place, change, table):
    kind = getattr(torch, dtype)
    data = np.random.default_rng(place).integers(0, 256, 7000 * kind.itemsize, dtype=np.uint8)
    changed = data.copy().reshape(7000, kind.itemsize)
    mask = np.frombuffer(change.to_bytes(4, "little"), np.uint8)[: kind.itemsize].copy()
    mask[0] |= not mask.any()
    changed[place] ^= mask
    one, other = (torch.from_numpy(x.reshape(-1)).view(kind) for x in (data, changed))
    assert differ(one, other, table)


@both_tables
def test_signed_zeros_nan_payloads_and_signaling_nans(table):
    words = [0, -(2**31), 0x7FC00000, 0x7FC00001, 0x7FA00000, -0x400000]
    sums = {fingerprint(bits(word), table=table).sum for word in words}
    assert len(sums) == len(words)


def test_the_same_values_in_another_dtype():
    values = torch.tensor([1.0, -2.5, 0.0])
    low = values.bfloat16()
    assert torch.equal(low.float(), values)
    assert differ(low, values)
    assert fingerprint(torch.zeros(2)) != fingerprint(torch.zeros(2, dtype=torch.int32))


def test_the_same_bits_in_another_shape_are_another_fingerprint_with_one_sum():
    tensor = torch.randn(4, 6)
    assert fingerprint(tensor) != fingerprint(tensor.view(6, 4))
    assert not differ(tensor, tensor.view(6, 4))


@both_tables
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_permutations_and_swapped_rows(dtype, table):
    generator = torch.Generator().manual_seed(3)
    tensor = torch.randint(-9, 9, (64, 2048), generator=generator).to(dtype)
    swapped = tensor.clone()
    swapped[[5, 40]] = swapped[[40, 5]]
    shuffled = tensor.view(-1)[torch.randperm(tensor.numel(), generator=generator)].view_as(tensor)
    turned = [
        swapped,
        shuffled,
        tensor.roll(1),
        tensor.roll(64 * 16),
        tensor.flip(0),
        tensor.flip(1),
    ]
    sums = {fingerprint(other, table=table).sum for other in [tensor, *turned]}
    assert len(sums) == 1 + len(turned)


def test_equal_pairs():
    pairs = {fingerprint(torch.tensor([x, x])).sum for x in (0.0, 1.0, -1.0, 3.14, float("inf"))}
    assert len(pairs) == 5


@both_tables
def test_zeros_ones_and_constants(table):
    full = [torch.full((1 << 16,), value) for value in (0.0, 1.0, 3.14, -1.0)]
    assert len({fingerprint(tensor, table=table).sum for tensor in full}) == 4
    assert differ(torch.arange(65536), torch.zeros(65536, dtype=torch.int64), table)


@settings(max_examples=200, deadline=None)
@given(
    dtype=st.sampled_from(["float32", "float64", "bfloat16", "float8_e4m3fn", "complex64"]),
    places=st.lists(st.integers(0, 9999), min_size=2, max_size=2, unique=True),
)
def test_two_flipped_signs(dtype, places):
    tensor = torch.rand(10_000).add_(0.5).to(getattr(torch, dtype))
    flipped = tensor.clone()
    for place in places:
        flipped[place] = -flipped[place].to(
            torch.complex64 if "complex" in dtype else torch.float64
        )
    assert differ(tensor, flipped)
    assert differ(tensor, flipped, table=2)


def test_every_sign_flipped():
    tensor = torch.randn(1 << 14)
    assert differ(tensor, -tensor)


@settings(max_examples=200, deadline=None)
@given(places=st.lists(st.integers(0, 19_999), min_size=2, max_size=2, unique=True))
def test_two_bits_of_a_mask(places):
    mask = torch.arange(20_000) % 3 == 0
    changed = mask.clone()
    changed[places] ^= True
    assert differ(mask, changed)


@both_tables
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64, torch.bfloat16])
def test_one_hot_routing_maps_of_tokens_that_exchange_experts(dtype, table):
    # 8 experts x 4 bytes x 256 tokens are one block of float32: the tokens below lie at the same
    # lane of different blocks, so that the change is +, -, -, + on a rectangle.
    experts = torch.randint(0, 8, (4096,), generator=torch.Generator().manual_seed(4))
    routing = torch.nn.functional.one_hot(experts, 8).to(dtype)
    sums = {fingerprint(routing, table=table).sum}
    first = int(experts[0])
    others = [t for t in range(256, 4096, 256) if int(experts[t]) != first]
    for token in others:
        changed = routing.clone()
        changed[[0, token]] = changed[[token, 0]]
        sums.add(fingerprint(changed, table=table).sum)
    assert len(sums) == 1 + len(others) > 10


@both_tables
def test_plus_minus_minus_plus_over_blocks(table):
    # An affine A would cancel this: A(0) - A(1) - A(2) + A(3) = 0.
    tensor = torch.full((4, 2048), 10, dtype=torch.int32)
    for lanes in (slice(0, 1), slice(100, 200), slice(None)):
        changed = tensor.clone()
        changed[:, lanes] += torch.tensor([[1], [-1], [-1], [1]], dtype=torch.int32)
        assert differ(tensor, changed, table)


def test_a_few_elements_that_move_by_one_ulp():
    generator = torch.Generator().manual_seed(5)
    tensor = torch.rand(4096, generator=generator).add_(0.5)
    sums = {fingerprint(tensor).sum}
    for count in (1, 2, 3, 4, 8, 64) * 30:
        changed = tensor.clone().view(torch.int32)
        changed[torch.randperm(4096, generator=generator)[:count]] += 1
        sums.add(fingerprint(changed).sum)
    assert len(sums) == 181
