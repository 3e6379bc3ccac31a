"""A linear layer whose three products have quantized operands, with float32 between them.

1. Forward: y = x W^T, summed over the inputs of the layer.
2. Gradient of x: dy W, summed over its outputs.
3. Gradient of W: dy^T x, summed over tokens.

An operand is quantized in blocks along the dimension that is summed over, so each of x, W and dy is
quantized twice, from the same bfloat16. The products are matrix products of the exact values in
float32: what a GPU would compute with its kernels but for the order of the sums, and slower. The
gradient dy is rounded by draws that are keyed like those of dropout, one key for each product:
nothing is left to save, and a block that is computed again, or elsewhere, has the same bits.

    layer = QuantizedLinear(64, 64, FORMATS["nvfp4"], "blocks.0.mixer.up")
    layer.draw = Draw(seed, step, rank)          # its block does this in each forward
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bitstep.train.draw import Draw
from bitstep.train.model.formats import Format, Operand
from bitstep.train.model.linear import Linear


class QuantizedLinear(Linear):
    """y = x W^T, no bias: [..., inputs] -> [..., outputs], in the dtype of x and W.

    `name` is the layer's path in the model. With `keyed` off, which is for the fault that must be
    caught, gradients are rounded by the generator of the process.
    """

    draw: Draw | None = None
    """Where in the run the forward that is going on belongs."""

    def __init__(
        self, inputs: int, outputs: int, format: Format, name: str, keyed: bool = True
    ) -> None:
        super().__init__(inputs, outputs)
        self.format, self.name, self.keyed = format, name, keyed

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        assert self.draw is not None, f"{self.name} was called outside of its block"
        rounding = Rounding(self.format, self.draw, self.name, self.keyed)
        rows = _Products.apply(x.flatten(0, -2), self.weight, rounding)  # type: ignore[no-untyped-call]
        return rows.view(*x.shape[:-1], -1)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Rounding:
    """How the operands of one layer are rounded in one forward and its backward."""

    format: Format
    draw: Draw
    name: str
    keyed: bool

    def gradient(self, dy: Tensor, product: str) -> Operand:
        """dy [rows, width] as operand of that product."""
        if self.format.stochastic is None:
            return self.format.nearest(dy)
        name = f"{self.name}.{product}"
        generator = self.draw.generator(name, dy.device) if self.keyed else None
        uniform = torch.rand(dy.shape, generator=generator, device=dy.device)
        return self.format.stochastic(dy, uniform)


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rounding: Rounding) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rounding = rounding
        nearest = rounding.format.nearest
        return _product(nearest(x), nearest(weight)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        (dy,), rounding = grads, ctx.rounding
        nearest = rounding.format.nearest
        dx = _product(rounding.gradient(dy, "input-grad"), nearest(weight.T))
        dw = _product(rounding.gradient(dy.T, "weight-grad"), nearest(x.T))
        return dx.to(x.dtype), dw.to(weight.dtype), None


def _product(a: Operand, b: Operand) -> Tensor:
    """[M, K] and [N, K] -> float32 [M, N]: a b^T."""
    return (a.values @ b.values.T) * (a.scale * b.scale)
