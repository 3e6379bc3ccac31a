"""Operands of a matrix product in MXFP8 and NVFP4: torchao's quantization, exactly given back.

1. Zeros fill up the last block. They quantize to zeros and add nothing, so any width is allowed.
2. MXFP8: 32 values share a power of two, rounded up so that none overflows; values are e4m3.
3. NVFP4: 16 values share an e4m3 scale, all of an operand a float32 scale from its largest
   magnitude; values are e2m1. A scale of the operand is kept apart, as the kernels of a GPU do, and
   multiplies the finished product.
4. Values go to the nearest, ties to even; those of an NVFP4 gradient go up or down by a uniform
   draw, up as often as they lie towards the upper one. torchao has that only inside of kernels for
   one GPU, so it is here.

Values times block scales have at most 6 significant bits and are exact in float32; a product of two
is exact, too.

>>> round_stochastically(torch.tensor([2.25, 2.25, -0.25]), torch.tensor([0.25, 0.2, 0.4]))
tensor([ 2.0000,  3.0000, -0.5000])
>>> mxfp8(torch.tensor([[1.0, 1.03125, 500.0]])).values
tensor([[  1.,   1., 512.]])
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


@contextmanager
def _quietly() -> Iterator[None]:
    # On import torchao 0.18 logs each C++ extension that the installed torch cannot load, and torch
    # a use of pytrees by torchao that it deprecates. Neither matters here.
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


with _quietly():
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.kernels import f32_to_f4_unpacked, pack_uint4
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

MXFP8_BLOCK, NVFP4_BLOCK = 32, 16
"""Values that share a scale, along the dimension that a product sums over."""
E2M1_MAX = 6.0
_SMALLEST_SCALE = 2.0**-100
"""Keeps the scale of an operand, and its reciprocal over that of a block, in the range of float32.
torchao divides by the scale of an operand that is all zeros, and gets NaN."""


class Operand(NamedTuple):
    """One operand of a matrix product, dequantized. Rows are quantized alone, one block at a time.

    `values` float32 [rows, width], without the scale of the operand; `scale` float32 [].
    """

    values: Tensor
    scale: Tensor


class Format(NamedTuple):
    """How operands are quantized; both take float32 or bfloat16 [rows, width]."""

    nearest: Callable[[Tensor], Operand]
    stochastic: Callable[[Tensor, Tensor], Operand] | None
    """For gradients, with a uniform draw of [0, 1) for each value; None rounds them to nearest."""


def mxfp8(x: Tensor) -> Operand:
    """[rows, width], to nearest."""
    quantized = MXTensor.to_mx(
        _whole_blocks(x, MXFP8_BLOCK),
        torch.float8_e4m3fn,
        MXFP8_BLOCK,
        scaling_mode=ScaleCalculationMode.RCEIL,
    )
    values = quantized.dequantize(torch.float32)[:, : x.shape[1]]
    return Operand(values, torch.ones((), device=x.device))


def nvfp4(x: Tensor) -> Operand:
    """[rows, width], to nearest."""
    scale = _operand_scale(x)
    quantized = NVFP4Tensor.to_nvfp4(_whole_blocks(x, NVFP4_BLOCK), per_tensor_scale=scale)
    return _without_scale(quantized.qdata, quantized.scale, scale, x)


def nvfp4_stochastic(x: Tensor, uniform: Tensor) -> Operand:
    """[rows, width], up or down by `uniform` of the same shape; scales as for `nvfp4`."""
    scale, padded = _operand_scale(x), _whole_blocks(x, NVFP4_BLOCK)
    block_scales = NVFP4Tensor.to_nvfp4(padded, per_tensor_scale=scale).scale
    scaled = torch.unflatten(padded.float(), 1, (-1, NVFP4_BLOCK))
    # In torchao's order, so that what is rounded here is what it rounds to nearest.
    scaled = scaled * ((1.0 / scale) / block_scales.float()).unsqueeze(-1)
    scaled = scaled.clamp(-E2M1_MAX, E2M1_MAX).flatten(1)
    rounded = round_stochastically(scaled, _whole_blocks(uniform, NVFP4_BLOCK))
    return _without_scale(pack_uint4(f32_to_f4_unpacked(rounded)), block_scales, scale, x)


def round_stochastically(x: Tensor, uniform: Tensor) -> Tensor:
    """float32 within ±6 to one of the two values of e2m1 around it: 0, 0.5, 1, 1.5, 2, 3, 4, 6.

    Away from zero where `uniform`, float32 in [0, 1) of the same shape, is below the part of the
    way that |x| has gone. With draws of 24 bits that is unbiased for |x| of 0.5 and more, and to
    2^-25 below. NaN stays NaN.
    """
    magnitude = x.abs()
    step = torch.where(magnitude < 2.0, 0.5, torch.where(magnitude < 4.0, 1.0, 2.0))
    steps = magnitude / step  # exact, as is the part below: a step is a power of two
    lower = steps.floor()
    return ((lower + (uniform < steps - lower)) * step).copysign(x)


FORMATS = {"mxfp8": Format(mxfp8, None), "nvfp4": Format(nvfp4, nvfp4_stochastic)}
"""By the name of the precision."""


def _whole_blocks(x: Tensor, block: int) -> Tensor:
    return F.pad(x, (0, -x.shape[1] % block)).contiguous()


def _operand_scale(x: Tensor) -> Tensor:
    scale: Tensor = per_tensor_amax_to_scale(x.abs().amax())
    return scale.clamp(min=_SMALLEST_SCALE)


def _without_scale(payload: Tensor, block_scales: Tensor, scale: Tensor, like: Tensor) -> Operand:
    values = NVFP4Tensor(payload, block_scales, NVFP4_BLOCK, torch.float32).dequantize()
    return Operand(values[:, : like.shape[1]], scale)
