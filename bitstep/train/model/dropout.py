"""Dropout whose mask is a function of the `Draw` and the module's name."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bitstep.train.draw import Draw


class Dropout(nn.Module):
    """[...] -> [...]: while training, zero with probability p, else times 1 / (1 - p)."""

    def __init__(self, p: float, name: str) -> None:
        super().__init__()
        self.p = p
        self.name = name

    def forward(self, x: Tensor, draw: Draw) -> Tensor:
        """[...] -> [...] of the same shape and dtype."""
        if self.p == 0 or not self.training:
            return x
        generator = draw.generator(self.name, x.device)
        kept = torch.rand(x.shape, generator=generator, device=x.device) >= self.p
        return x * (kept.to(x.dtype) / (1 - self.p))
