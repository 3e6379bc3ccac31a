"""A metric -> its bits, exactly; on an accelerator without waiting for it.

>>> metric_row(torch.tensor(-0.0)).sum == 0x80000000, metric_row(3).dtype
(True, 'int64')
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from bitstep.errors import UsageError
from bitstep.observe.digests import Digest, digest_of, is_bare, unwrapped
from bitstep.trace.schema import metric_bits

_BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.int64: torch.int64}
_NAMES = {torch.float32: "float32", torch.float64: "float64", torch.int64: "int64"}


def metric_row(value: Any) -> Digest:
    """The row of a number or a tensor. A tensor of several elements, or of another dtype than
    float32, float64 and int64, is digested as a tensor. Raises UsageError for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool | int):
        return Digest(metric_bits(int(value), "int64"), "int64", ())
    if isinstance(value, float):
        return Digest(metric_bits(value, "float64"), "float64", ())
    if not isinstance(value, Tensor):
        raise UsageError(f"a {type(value).__name__} is no metric: give a number or a tensor")
    tensor = unwrapped(getattr(value, "_local_tensor", value))
    if tensor.numel() != 1 or tensor.dtype not in _BITS or tensor.is_meta:
        return digest_of(tensor)
    try:
        if is_bare(tensor):
            raw = ctypes.string_at(tensor.data_ptr(), tensor.itemsize)
            return Digest(int.from_bytes(raw, "little"), _NAMES[tensor.dtype], ())
        return Digest(_bits(tensor), _NAMES[tensor.dtype], ())
    except RuntimeError:  # A fake tensor has no value.
        return digest_of(tensor)


def _bits(tensor: Tensor) -> Any:
    with _disable_current_modes(), torch.no_grad():
        words = tensor.detach().reshape(()).view(_BITS[tensor.dtype]).to(torch.int64)
        if tensor.dtype == torch.float32:
            words = words & 0xFFFFFFFF
        return int(words) % 2**64 if tensor.is_cpu else words
