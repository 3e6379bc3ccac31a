"""The Mamba-2 recurrence, evaluated chunk by chunk with matrix products.

    state[t] = exp(dt[t] A) state[t-1] + dt[t] B[t] x[t]^T        y[t] = C[t] state[t]

1. Pad to whole chunks with dt = 0: such a token neither decays the state nor adds to it.
2. Sum the exponents dt A along each chunk, as a product with a triangle of ones.
3. Within a chunk y is masked attention: C B^T, times the decay between the two tokens.
4. Each chunk adds a state; a left fold over the chunks carries it on.
5. What the carried state gives to each token is added.

The exponents and states want float32. There is no cumsum: on CUDA torch has no deterministic one.

>>> ones = torch.ones(1, 5, 1, 1)  # No decay, so that y[t] is the sum of the inputs so far.
>>> scan(ones, torch.ones(1, 5, 1), torch.zeros(1), ones, ones, chunk=2).flatten().tolist()
[1.0, 2.0, 3.0, 4.0, 5.0]
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def scan(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk: int) -> Tensor:
    """Run the recurrence from a zero state.

    x [B, S, H, P] inputs; dt [B, S, H] step sizes; a [H] decay rates, below zero; b and c
    [B, S, G, N], each of G groups for H / G heads. Gives y [B, S, H, P]. `chunk` is in tokens.
    """
    length, groups = x.shape[1], b.shape[2]
    b, c = (_chunks(t, chunk).transpose(2, 3) for t in (b, c))  # [B, chunks, G, L, N]
    steps = torch.unflatten(_chunks(dt, chunk), -1, (groups, -1)).movedim(
        2, -1
    )  # [B, chunks, G, R, L]
    inputs = torch.unflatten(_chunks(x * dt.unsqueeze(-1), chunk), 3, (groups, -1)).movedim(2, -2)
    rates = torch.unflatten(a, 0, (groups, -1)).unsqueeze(-1)
    exponents = (steps * rates) @ torch.ones(chunk, chunk, dtype=x.dtype, device=x.device).triu()
    y = _within(inputs, exponents, b, c) + _across(inputs, exponents, b, c)
    return y.movedim(-2, 2).flatten(3, 4).flatten(1, 2)[:, :length]


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """[B, S, ...] -> [B, chunks, chunk, ...], padded with zeros."""
    pad = (0, 0) * (x.ndim - 2) + (0, -x.shape[1] % chunk)
    return torch.unflatten(F.pad(x, pad), 1, (-1, chunk))


def _within(inputs: Tensor, exponents: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """What tokens of the same chunk give: [B, chunks, G, R, L, P]."""
    length = exponents.shape[-1]
    later = torch.ones(length, length, dtype=torch.bool, device=b.device).triu(1)
    gaps = exponents.unsqueeze(-1) - exponents.unsqueeze(-2)  # from token j (column) to i (row)
    decay = gaps.masked_fill(later, -torch.inf).exp()
    return ((c @ b.mT).unsqueeze(3) * decay) @ inputs


def _across(inputs: Tensor, exponents: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """What earlier chunks give through the state: [B, chunks, G, R, L, P]."""
    to_end = (exponents[..., -1:] - exponents).exp().unsqueeze(-1)
    added = b.mT.unsqueeze(3) @ (inputs * to_end)  # [B, chunks, G, R, N, P]
    decay = exponents[..., -1].exp()[..., None, None]
    state = torch.zeros_like(added[:, 0])
    carried = []
    for i in range(added.shape[1]):
        carried.append(state)
        state = state * decay[:, i] + added[:, i]
    return (c.unsqueeze(3) @ torch.stack(carried, 1)) * exponents.exp().unsqueeze(-1)
