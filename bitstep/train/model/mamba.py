"""The Mamba-2 block `M`.

1. One projection gives the gate z, the inputs x with B and C, and a step size per head.
2. A causal depthwise convolution and SiLU over x, B and C.
3. The scan, with dt = softplus(dt + dt_bias) and A = -exp(A_log), plus the skip D x.
4. RMSNorm of the result times SiLU(z), group by group, and the projection back.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bitstep.train.model.config import ModelConfig
from bitstep.train.model.linear import Linear
from bitstep.train.model.norm import GatedRMSNorm
from bitstep.train.model.scan import scan
from bitstep.train.model.wide import widen


class Mamba(nn.Module):
    """[B, S, hidden] -> [B, S, hidden]; position t sees positions up to t."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        heads, self.inner = config.mamba_heads, config.mamba_heads * config.mamba_head_dim
        self.shared = config.mamba_groups * config.mamba_state
        channels = self.inner + 2 * self.shared
        self.project = Linear(config.hidden, self.inner + channels + heads)
        self.conv_weight = nn.Parameter(torch.empty(channels, config.conv_width))
        self.conv_bias = nn.Parameter(torch.empty(channels))
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.A_log = nn.Parameter(torch.empty(heads))
        self.D = nn.Parameter(torch.empty(heads))
        self.norm = GatedRMSNorm(self.inner, config.norm_eps, config.mamba_groups)
        self.out = Linear(self.inner, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, hidden] -> [B, S, hidden]."""
        inner, shared = self.inner, self.shared
        heads = self.config.mamba_heads
        gate, mixed, dt = torch.split(self.project(x), [inner, inner + 2 * shared, heads], dim=-1)
        mixed = F.silu(convolve(widen(mixed), widen(self.conv_weight), widen(self.conv_bias)))
        inputs, b, c = torch.split(mixed, [inner, shared, shared], dim=-1)
        y = self._scan(inputs, F.softplus(widen(dt) + widen(self.dt_bias)), b, c)
        return self.out(self.norm(y, gate).to(x.dtype))  # type: ignore[no-any-return]

    def _scan(self, inputs: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """[B, S, inner], [B, S, heads], twice [B, S, groups * state] -> [B, S, inner]."""
        config = self.config
        inputs = torch.unflatten(inputs, -1, (config.mamba_heads, config.mamba_head_dim))
        b, c = (torch.unflatten(t, -1, (config.mamba_groups, config.mamba_state)) for t in (b, c))
        y = scan(inputs, dt, -widen(self.A_log).exp(), b, c, config.chunk)
        return (y + widen(self.D).unsqueeze(-1) * inputs).flatten(2)


def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Causal depthwise convolution: x [B, S, C], weight [C, width], bias [C] -> [B, S, C].

    Shifted products, added oldest token first: no library kernel chooses the order of the sum.
    """
    width, length = weight.shape[1], x.shape[1]
    padded = F.pad(x, (0, 0, width - 1, 0))
    y = bias.expand_as(x)
    for tap in range(width):
        y = y + padded[:, tap : tap + length] * weight[:, tap]
    return y
