"""The MLP block `-`, which is also what an expert is: up, squared ReLU, down."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from bitstep.train.model.linear import Linear


class MLP(nn.Module):
    """[..., hidden] -> [..., hidden] through `width`."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.up = Linear(hidden, width)
        self.down = Linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        return self.down(F.relu(self.up(x)).square())  # type: ignore[no-any-return]
