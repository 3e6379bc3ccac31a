"""Which experts a token goes to, and with what weight.

1. Logits in float32, scores by softmax or sigmoid.
2. The top k by score + bias; of equal ones the lower index. The bias moves the choice only.
3. Weights are the scores of the chosen, divided by their sum where k > 1 (with k = 1 that would
   leave the router without a gradient).
4. Two losses of the microbatch: load balancing, E x sum over experts of (share of the choices) x
   (mean score share), 1 when even; and z, the mean squared logsumexp of the logits.

After each step `update_expert_bias` lowers the bias of experts that had more than the mean.

>>> top_k(torch.tensor([[0.5, 2.0, 0.5, 2.0]]), 3).tolist()
[[1, 3, 0]]
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bitstep.train.model.config import ModelConfig
from bitstep.train.model.wide import widen

_TINY = 1e-20
"""Keeps sums of sigmoid scores off zero: below a logit of about -104 float32 has none."""


class Routing(NamedTuple):
    """What the router says of T tokens."""

    experts: Tensor
    """int64 [T, k]: chosen experts, best first."""
    weights: Tensor
    """float32 [T, k]: their weights."""
    counts: Tensor
    """int64 [experts]: tokens per expert."""
    balance: Tensor
    """float32 []: load-balancing loss, without its coefficient."""
    z: Tensor
    """float32 []: z-loss, without its coefficient."""


class Router(nn.Module):
    """[T, hidden] -> Routing of T tokens."""

    expert_bias: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.score = config.score
        self.weight = nn.Parameter(torch.empty(config.experts, config.hidden))
        self.register_buffer("expert_bias", torch.zeros(config.experts, dtype=torch.float32))

    def forward(self, x: Tensor) -> Routing:
        """[T, hidden] -> Routing."""
        logits = F.linear(widen(x), widen(self.weight))
        scores = logits.softmax(-1) if self.score == "softmax" else logits.sigmoid()
        experts = top_k(scores.detach() + self.expert_bias, self.top_k)
        # A comparison and a sum in place of gather, whose backward is a scatter-add.
        chosen = experts.unsqueeze(-1) == torch.arange(scores.shape[-1], device=x.device)
        weights = torch.where(chosen, scores.unsqueeze(1), 0.0).sum(-1)
        if self.top_k > 1:
            weights = weights / (weights.sum(-1, keepdim=True) + _TINY)
        counts = chosen.sum((0, 1))
        z = logits.logsumexp(-1).square().mean()
        return Routing(experts, weights, counts, balance(scores, counts, self.top_k), z)


def top_k(scores: Tensor, k: int) -> Tensor:
    """Indices of the k largest of the last dimension, best first: [T, E] -> int64 [T, k].

    Of equal scores the lower index comes first. torch.topk promises no order of ties.
    """
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :k]


def balance(scores: Tensor, counts: Tensor, k: int) -> Tensor:
    """Load-balancing loss of scores [T, E] and counts [E], k choices a token -> []."""
    shares = scores / (scores.sum(-1, keepdim=True) + _TINY)
    chosen = counts / (k * scores.shape[0])
    return (chosen * shares.mean(0)).sum() * scores.shape[-1]


@torch.no_grad()
def update_expert_bias(bias: Tensor, counts: Tensor, rate: float) -> None:
    """Add `rate` to the bias of experts below the mean count, take it from those above.

    bias float32 [experts], in place; counts int64 [experts], of a whole step over all logical
    ranks. The comparison with the mean is in integers, so that no rounding decides it.
    """
    sign = (counts.sum() - counts * counts.numel()).sign()
    bias.add_(sign.to(bias.dtype), alpha=rate)
