"""The mixture-of-experts block `E`.

1. The router chooses k experts for each token.
2. The T x k choices are sorted by expert, stably: each expert gets one contiguous slice, its
   tokens in their order. An expert without tokens is not run, and its gradients stay None.
3. The results go back to their tokens through the inverse permutation; the k of a token are
   added best choice first. Neither direction, forward or backward, adds by index.
4. The shared expert sees every token.

>>> order = torch.tensor([1, 0, 0, 1, 0]).argsort(stable=True)  # Choices: experts 1 0 0 1 0.
>>> order.tolist(), order.argsort().tolist()  # Which choice is in each row, and back.
([1, 2, 4, 0, 3], [3, 0, 1, 4, 2])
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from bitstep.train.model.config import ModelConfig
from bitstep.train.model.mlp import MLP
from bitstep.train.model.router import Router
from bitstep.train.model.wide import widen


class Experts(nn.Module):
    """[B, S, hidden] -> [B, S, hidden], with the losses and counts of its router."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.router = Router(config)
        self.experts = nn.ModuleList(
            MLP(config.hidden, config.expert_width) for _ in range(config.experts)
        )
        self.shared = MLP(config.hidden, config.shared_width)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """[B, S, hidden] -> [B, S, hidden] and {"balance": [], "z": [], "counts": [experts]}.

        The counts are returned and not kept, so that recomputation does not count twice.
        """
        tokens = x.flatten(0, 1)
        routing = self.router(tokens)
        order = routing.experts.flatten().argsort(stable=True)
        inverse = order.argsort()
        rows = take_rows(tokens, order // routing.experts.shape[1], inverse)
        rows = take_rows(self._run(rows, routing.counts), inverse, order)
        rows = torch.unflatten(widen(rows), 0, (len(tokens), -1))  # [T, k, hidden]
        weighted = rows * routing.weights.unsqueeze(-1)
        mixed = reduce(torch.add, weighted.unbind(1)).to(x.dtype) + self.shared(tokens)
        losses = {"balance": routing.balance, "z": routing.z, "counts": routing.counts}
        return mixed.view_as(x), losses

    def _run(self, rows: Tensor, counts: Tensor) -> Tensor:
        """[T * k, hidden], sorted by expert, and counts [experts] -> [T * k, hidden]."""
        # The counts go to the host: on an accelerator one wait per E block.
        slices = zip(self.experts, torch.split(rows, counts.tolist()), strict=True)
        return torch.cat([expert(part) for expert, part in slices if len(part)])


def take_rows(x: Tensor, index: Tensor, back: Tensor) -> Tensor:
    """Rows of x [T, ...] by index int64 [N] -> [N, ...], N a multiple of T.

    `back`, a permutation of the N results, says where row t went: to back[t * N / T + i]. The
    gradient is gathered through it and added in the order of i, where torch would add by index.
    """
    return _TakeRows.apply(x, index, back)  # type: ignore[no-any-return, no-untyped-call]


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        ctx.rows = len(x)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        gathered = torch.unflatten(widen(grads[0].index_select(0, back)), 0, (ctx.rows, -1))
        return reduce(torch.add, gathered.unbind(1)).to(grads[0].dtype), None, None
