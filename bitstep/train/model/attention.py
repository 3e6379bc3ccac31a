"""The attention block `*`: causal, grouped-query, no position embedding (as in Nemotron-H).

On CPU the backend gives equal bits in repeated runs and at 1 to 8 threads (measured). On CUDA (not
run) the flash and memory-efficient backward passes are deterministic under
`torch.use_deterministic_algorithms(True)` but not with `warn_only`, which leaves atomics in them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bitstep.train.model.config import ModelConfig
from bitstep.train.model.linear import Linear


class Attention(nn.Module):
    """[B, S, hidden] -> [B, S, hidden]; position t sees positions up to t."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.query = Linear(config.hidden, config.heads * config.head_dim)
        self.key = Linear(config.hidden, config.kv_heads * config.head_dim)
        self.value = Linear(config.hidden, config.kv_heads * config.head_dim)
        self.out = Linear(config.heads * config.head_dim, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, hidden] -> [B, S, hidden]."""
        query = self._heads(self.query(x))
        key, value = self._heads(self.key(x)), self._heads(self.value(x))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        """[B, S, heads * head_dim] -> [B, heads, S, head_dim]."""
        return torch.unflatten(x, -1, (-1, self.head_dim)).transpose(1, 2)
