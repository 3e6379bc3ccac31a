"""Cross entropy of the next token, in float32, averaged over all positions."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from bitstep.train.model.wide import widen


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """logits [B, S, vocabulary], targets int64 [B, S] -> float32 [], in nats per token."""
    # Flat: the loss over [B, V, S] is another kernel, which has no deterministic form on CUDA.
    return F.cross_entropy(widen(logits).flatten(0, 1), targets.flatten())
