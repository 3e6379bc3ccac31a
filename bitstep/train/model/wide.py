"""Arithmetic that bf16 is too narrow for runs at least in float32.

>>> import torch
>>> widen(torch.ones(1, dtype=torch.bfloat16)).dtype, widen(torch.ones(1).double()).dtype
(torch.float32, torch.float64)
"""

from __future__ import annotations

import torch
from torch import Tensor


def widen(tensor: Tensor) -> Tensor:
    """Give `tensor` in float32, or in its own dtype where that is wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
