"""One residual step: x + dropout(mixer(norm(x))), the mixer named by a letter of the pattern.

A block is the unit that FSDP shards and that activation recomputation runs again. What it returns
is all that leaves it, so a second run adds nothing to anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bitstep.train.draw import Draw
from bitstep.train.model.attention import Attention
from bitstep.train.model.config import ModelConfig
from bitstep.train.model.dropout import Dropout
from bitstep.train.model.experts import Experts
from bitstep.train.model.mamba import Mamba
from bitstep.train.model.mlp import MLP
from bitstep.train.model.norm import RMSNorm

if TYPE_CHECKING:
    from bitstep.train.model.quantized import QuantizedLinear

Stepped = tuple[Tensor, dict[str, Tensor]]
"""The residual stream [B, S, hidden], and of an E block the losses and counts of its router."""


class Block(nn.Module):
    """[B, S, hidden] -> [B, S, hidden]. `name` is the block's path in the model."""

    def __init__(self, letter: str, name: str, config: ModelConfig, recompute: bool) -> None:
        super().__init__()
        self.letter = letter
        self.recompute = recompute
        self.norm = RMSNorm(config.hidden, config.norm_eps)
        self.mixer = _mixer(letter, config)
        self.dropout = Dropout(config.dropout, f"{name}.dropout")
        self.rounded: list[QuantizedLinear] = []  # layers of the mixer; filled by `precision`

    def forward(self, x: Tensor, draw: Draw) -> Stepped:
        """[B, S, hidden] -> [B, S, hidden] and the router's dictionary, empty but for E."""
        # Inside the module, so that FSDP's hooks (cast, gather) are outside and run once.
        if self.recompute and self.training:
            stepped: Stepped = checkpoint(
                self._step, x, draw, use_reentrant=False, preserve_rng_state=False
            )
            return stepped
        return self._step(x, draw)

    def _step(self, x: Tensor, draw: Draw) -> Stepped:
        for layer in self.rounded:
            layer.draw = draw
        mixed = self.mixer(self.norm(x))
        mixed, routed = mixed if self.letter == "E" else (mixed, {})
        return x + self.dropout(mixed, draw), routed


def _mixer(letter: str, config: ModelConfig) -> nn.Module:
    match letter:
        case "M":
            return Mamba(config)
        case "*":
            return Attention(config)
        case "E":
            return Experts(config)
        case _:
            return MLP(config.hidden, config.mlp_width)
