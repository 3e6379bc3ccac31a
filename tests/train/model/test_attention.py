"""Attention against an explicit softmax, one head at a time."""

import pytest
import torch
from model_helpers import fill, random, same_bits, tiny_config

from bitstep.train.model.attention import Attention


def block() -> Attention:
    config = tiny_config()
    attention = Attention(config)
    fill(attention, config, "blocks.1.mixer.")
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.mul_(20)
    return attention


def explicit(attention: Attention, x: torch.Tensor) -> torch.Tensor:
    """4 query heads, 2 key heads of width 3: query head h reads key head h // 2."""
    length = x.shape[1]
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    heads = []
    for h in range(4):
        query = attention.query(x)[..., 3 * h : 3 * h + 3]
        key = attention.key(x)[..., 3 * (h // 2) : 3 * (h // 2) + 3]
        value = attention.value(x)[..., 3 * (h // 2) : 3 * (h // 2) + 3]
        scores = (query @ key.mT / 3**0.5).masked_fill(later, -torch.inf)
        heads.append(scores.softmax(-1) @ value)
    return attention.out(torch.cat(heads, -1))


def test_equals_the_explicit_softmax_forward_and_backward() -> None:
    attention = block()
    x = random(2, 11, 16).requires_grad_()
    y = x.detach().clone().requires_grad_()
    mine, other = attention(x), explicit(attention, y)
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    mine.square().sum().backward()
    other.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_repeats_have_equal_bits(dtype: torch.dtype) -> None:
    attention = block().to(dtype)
    x = random(2, 64, 16).to(dtype)
    seen = []
    for _ in range(3):
        attention.zero_grad()
        y = attention(x)
        y.square().sum().backward()
        seen.append((y, attention.query.weight.grad, attention.value.weight.grad))
    for other in seen[1:]:
        assert all(same_bits(a, b) for a, b in zip(seen[0], other, strict=True))


def test_gradients_are_those_of_finite_differences() -> None:
    attention = block().double()
    x = random(1, 4, 16, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(attention, (x,), fast_mode=True)
