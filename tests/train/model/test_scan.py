"""The chunked scan against the recurrence that it evaluates."""

import pytest
import torch
from model_helpers import random

from bitstep.train.model.scan import scan


def inputs(
    length: int, dtype: torch.dtype = torch.float64, heads: int = 4, groups: int = 2
) -> tuple[torch.Tensor, ...]:
    x = random(2, length, heads, 3, seed=1, dtype=dtype)
    dt = random(2, length, heads, seed=2, dtype=dtype).abs()
    a = -random(heads, seed=3, dtype=dtype).abs()
    b, c = (random(2, length, groups, 5, seed=s, dtype=dtype) for s in (4, 5))
    return x, dt, a, b, c


def recurrence(
    x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """One token, one head at a time, straight from the definition."""
    y = torch.zeros_like(x)
    heads_per_group = x.shape[2] // b.shape[2]
    for batch in range(x.shape[0]):
        for head in range(x.shape[2]):
            group = head // heads_per_group
            state = torch.zeros(b.shape[3], x.shape[3], dtype=x.dtype)
            for t in range(x.shape[1]):
                step = dt[batch, t, head]
                added = torch.outer(b[batch, t, group], x[batch, t, head]) * step
                state = state * torch.exp(step * a[head]) + added
                y[batch, t, head] = c[batch, t, group] @ state
    return y


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("chunk", [1, 4, 16])
def test_chunks_give_the_recurrence(length: int, chunk: int) -> None:
    args = inputs(length)
    torch.testing.assert_close(scan(*args, chunk), recurrence(*args), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 4])
def test_any_number_of_groups_gives_the_recurrence(groups: int) -> None:
    args = inputs(9, groups=groups)
    torch.testing.assert_close(scan(*args, 4), recurrence(*args), rtol=1e-12, atol=1e-12)


def test_strong_decay_stays_finite_and_right() -> None:
    x, dt, a, b, c = inputs(40, torch.float32)
    args = (x, dt * 20, a * 20, b, c)
    for t in args:
        t.requires_grad_()
    y = scan(*args, 16)
    torch.testing.assert_close(y, recurrence(*args), rtol=1e-4, atol=1e-4)
    y.sum().backward()
    assert all(bool(t.grad.isfinite().all()) for t in args if t.grad is not None)


def test_the_gradient_is_that_of_the_recurrence() -> None:
    ours = tuple(t.requires_grad_() for t in inputs(7))
    reference = tuple(t.detach().clone().requires_grad_() for t in ours)
    weight = random(2, 7, 4, 3, seed=9, dtype=torch.float64)
    (scan(*ours, 4) * weight).sum().backward()
    # Token by token, without writing in place, so that autograd can follow.
    x, dt, a, b, c = reference
    state = torch.zeros(2, 4, 5, 3, dtype=torch.float64)
    rows = []
    for t in range(7):
        per_head_b = b[:, t].repeat_interleave(2, dim=1)
        per_head_c = c[:, t].repeat_interleave(2, dim=1)
        decay = torch.exp(dt[:, t] * a)[..., None, None]
        added = per_head_b.unsqueeze(-1) * (x[:, t] * dt[:, t, :, None]).unsqueeze(-2)
        state = state * decay + added
        rows.append((per_head_c.unsqueeze(-1) * state).sum(-2))
    (torch.stack(rows, 1) * weight).sum().backward()
    for mine, theirs in zip(ours, reference, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-11, atol=1e-11)
