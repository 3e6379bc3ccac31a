"""RMSNorm, computed in float32.

1. Square, mean over the last dimension (or over each group of it), add eps, inverse root.
2. Multiply by it and by the weight; only the result is rounded to the dtype of the input.

>>> norm = RMSNorm(2, eps=0.0)
>>> _ = nn.init.ones_(norm.weight)
>>> norm(torch.tensor([-3.0, 3.0])).tolist()
[-1.0, 1.0]
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bitstep.train.model.wide import widen


class RMSNorm(nn.Module):
    """[..., width] -> [..., width], each of `groups` equal parts of the width normed alone."""

    def __init__(self, width: int, eps: float, groups: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width], in the dtype of `x`."""
        wide = torch.unflatten(widen(x), -1, (self.groups, -1))
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (widen(self.weight) * (wide * scale).flatten(-2)).to(x.dtype)


class GatedRMSNorm(RMSNorm):
    """RMSNorm of x times SiLU of a gate, as the Mamba-2 mixer ends."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        """[..., width], [..., width] -> [..., width]."""
        return super().forward(widen(x) * F.silu(widen(gate)))
