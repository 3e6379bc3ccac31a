"""One depth of multi-token prediction, as in DeepSeek-V3 and Megatron.

At position i depth k joins what is known of tokens up to i + k - 1 (the residual stream of depth
k - 1) with token i + k itself, and predicts token i + k + 1. Embedding and head are the model's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bitstep.train.draw import Draw
from bitstep.train.model.block import Block
from bitstep.train.model.config import ModelConfig
from bitstep.train.model.linear import Linear
from bitstep.train.model.norm import RMSNorm


class Depth(nn.Module):
    """[B, S, hidden] of the depth before, [B, S, hidden] of the token -> [B, S, hidden]."""

    def __init__(self, name: str, config: ModelConfig, recompute: bool) -> None:
        super().__init__()
        self.norm_hidden = RMSNorm(config.hidden, config.norm_eps)
        self.norm_token = RMSNorm(config.hidden, config.norm_eps)
        self.join = Linear(2 * config.hidden, config.hidden)
        self.blocks = nn.ModuleList(
            Block(letter, f"{name}.blocks.{i}", config, recompute)
            for i, letter in enumerate(config.mtp_pattern)
        )
        self.norm = RMSNorm(config.hidden, config.norm_eps)

    def forward(
        self, hidden: Tensor, token: Tensor, draw: Draw
    ) -> tuple[Tensor, Tensor, list[dict[str, Tensor]]]:
        """Twice [B, S, hidden] -> the residual stream, the input of the head, router outputs."""
        joined = torch.cat([self.norm_hidden(hidden), self.norm_token(token)], dim=-1)
        x = self.join(joined)
        routed = []
        for block in self.blocks:
            x, router = block(x, draw)
            routed.append(router)
        return x, self.norm(x), routed
