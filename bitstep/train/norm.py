"""The gradient norm, exact before its one rounding, and clipping by it.

    m = max |x|    over the logical gradient, by bits; m < 2^E, as in frexp
    S = sum of floor(x^2 * 2^(98 - 2E))    an integer
    norm = sqrt(S * 2^(2E - 98))    rounded once, to float64

1. Each process finds its m; one integer MAX makes it the one of all.
2. Each process adds up its S in integers (`norm_kernel`); one integer SUM makes it that of all.
3. The square root of the integer is taken in integers, and rounded once.

Integers add up to the same in any order: the norm depends on no shard, block, thread or process.
Truncation is below one part in 2^58 of m^2 for 2^40 elements; 2^44 elements are the limit.
A NaN anywhere gives NaN, else an infinity gives inf; denormals are exact; all zeros give 0.

>>> exact_norm([torch.tensor([3.0]), torch.tensor([-4.0])], Processes(rank=0, world=1))
5.0
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from bitstep.errors import RecipeError
from bitstep.state.processes import Processes
from bitstep.train.norm_kernel import add_limbs, largest_bits

INFINITY_BITS = 0x7F800000
"""float32 bits without sign order finite numbers < inf < NaN."""


def exact_norm(tensors: Sequence[Tensor], processes: Processes) -> float:
    """Euclidean norm over the tensors of all processes together, correctly rounded.

    tensors: this process's parts, float32, bfloat16 or float16 (taken as their float32 values), of
    any shapes; parts of different processes do not overlap. Two small collectives. Raises
    RecipeError for another dtype.
    """
    parts = [_as_float32(tensor) for tensor in tensors if tensor.numel() > 0]
    device = parts[0].device if parts else processes.device
    bits = torch.tensor([max(map(largest_bits, parts), default=0)])
    processes.max_int64(bits)
    top = int(bits.item())
    if top == 0:
        return 0.0
    if top >= INFINITY_BITS:
        return math.inf if top == INFINITY_BITS else math.nan
    exponent = math.frexp(struct.unpack("<f", struct.pack("<I", top))[0])[1]
    limbs = torch.zeros(4, dtype=torch.int64, device=device)
    for part in parts:
        add_limbs(part, -exponent, limbs)
    processes.sum_int64(limbs)
    high_high, high_low, low_high, low_low = limbs.tolist()
    total = (((high_high << 32) + high_low) << 49) + (low_high << 32) + low_low
    return math.ldexp(_rounded_sqrt(total), exponent - 49)


def _as_float32(tensor: Tensor) -> Tensor:
    if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise RecipeError(
            f"a gradient is {str(tensor.dtype).removeprefix('torch.')}: the norm is defined for "
            "float32, bfloat16 and float16; reduce gradients in float32"
        )
    if tensor.dtype == torch.float32 and tensor.is_contiguous():
        return tensor
    return tensor.detach().to(torch.float32).contiguous()


def _rounded_sqrt(number: int) -> float:
    """Square root of a natural number, correctly rounded to float64."""
    # 120 bits more leave 60 bits and more in the root. The last bit then says whether anything
    # is left over, and int to float rounds to nearest even: the only rounding.
    scaled = number << 120
    root = math.isqrt(scaled)
    return math.ldexp(float(root << 1 | (root * root != scaled)), -61)


def clip_(tensors: Sequence[Tensor], norm: float, max_norm: float) -> float:
    """Scale the tensors in place so that their norm is at most max_norm; the coefficient.

    min(1, max_norm / (norm + 1e-6)) in float64, rounded once to float32, then one multiplication
    per element; none where the coefficient is 1. A norm of NaN makes every element NaN.
    """
    wanted = max_norm / (norm + 1e-6)
    coefficient = 1.0 if wanted >= 1.0 else _to_float32(wanted)
    if coefficient != 1.0 and tensors:
        torch._foreach_mul_(list(tensors), coefficient)
    return coefficient


def _to_float32(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", number))[0])
