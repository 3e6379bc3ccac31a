"""The whole model: embedding, blocks in the order of the pattern, head, and its losses.

1. Embed S + D tokens once; the first S go through the blocks.
2. The head gives the loss of the next token.
3. Each of the D depths of `mtp` takes one more token and gives the loss of the one after it.
4. total = loss + load_balancing + z_loss + mtp_weight x mean of the mtp losses.

Under FSDP each of `units()` is wrapped, then the model. Every parameter is used only in the
forward of the unit (or of the model) that owns it.

    with torch.device("meta"):
        model = HybridModel(config)
    ...                                          # shard, then fill by name
    losses = model(tokens, Draw(seed, step, rank))
    losses["total"].backward()
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bitstep.train.draw import Draw
from bitstep.train.model.block import Block
from bitstep.train.model.config import ModelConfig
from bitstep.train.model.linear import Embedding, Linear
from bitstep.train.model.loss import token_loss
from bitstep.train.model.mtp import Depth
from bitstep.train.model.norm import RMSNorm
from bitstep.train.model.router import Router


class HybridModel(nn.Module):
    """A language model whose parameters hold no values until they are filled by name.

    `recompute` keeps only the input of each block and runs the block again in the backward pass;
    the bits are the same. Build it on the meta device, then fill it from `initial.initialise`.
    """

    def __init__(self, config: ModelConfig, recompute: bool = False) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocabulary, config.hidden)
        self.blocks = nn.ModuleList(
            Block(letter, f"blocks.{i}", config, recompute)
            for i, letter in enumerate(config.pattern)
        )
        self.norm = RMSNorm(config.hidden, config.norm_eps)
        self.head = Linear(config.hidden, config.vocabulary)
        self.mtp = nn.ModuleList(
            Depth(f"mtp.{i}", config, recompute) for i in range(config.mtp_depth)
        )

    def forward(self, tokens: Tensor, draw: Draw) -> dict[str, Tensor]:
        """Losses of tokens int64 [B, S + 1 + D], D = mtp_depth; all S positions count.

        float32 [] each: "loss" and "mtp_1".."mtp_D" in nats per token, not weighted;
        "load_balancing" and "z_loss" as they enter the total, with their coefficient and summed
        over the E blocks (0 where there are none); "total". And where there are E blocks
        "expert_counts", int64 [E blocks, experts], the E blocks of `mtp` last.
        """
        depth = self.config.mtp_depth
        length = tokens.shape[1] - 1 - depth
        assert length > 0, f"a row of {tokens.shape[1]} tokens is too short for {depth} depths"
        embedded = self.embedding(tokens[:, :-1])
        x = embedded[:, :length]
        routed: list[dict[str, Tensor]] = []
        for block in self.blocks:
            x, router = block(x, draw)
            routed.append(router)
        losses = {"loss": token_loss(self.head(self.norm(x)), tokens[:, 1 : length + 1])}
        for k, unit in enumerate(self.mtp, start=1):
            x, output, routers = unit(x, embedded[:, k : k + length], draw)
            routed += routers
            losses[f"mtp_{k}"] = token_loss(self.head(output), tokens[:, k + 1 : k + 1 + length])
        return self._total(losses, [router for router in routed if router])

    def _total(
        self, losses: dict[str, Tensor], routed: Sequence[dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        config, zero = self.config, torch.zeros_like(losses["loss"])
        losses["load_balancing"] = sum((r["balance"] for r in routed), zero) * config.balance_loss
        losses["z_loss"] = sum((r["z"] for r in routed), zero) * config.z_loss
        total = losses["loss"] + losses["load_balancing"] + losses["z_loss"]
        for k in range(1, config.mtp_depth + 1):
            total = total + losses[f"mtp_{k}"] * (config.mtp_weight / config.mtp_depth)
        losses["total"] = total
        if routed:
            losses["expert_counts"] = torch.stack([r["counts"] for r in routed])
        return losses

    def units(self) -> list[nn.Module]:
        """Modules to shard one by one, in the order of the forward pass."""
        return [*self.blocks, *self.mtp]

    def expert_biases(self) -> list[Tensor]:
        """Bias of each E block, float32 [experts], in the order of the rows of expert_counts."""
        return [module.expert_bias for module in self.modules() if isinstance(module, Router)]
