"""Transformer Engine's GroupedTensor: many tensors in flat buffers, one after another.

1. The format goes by the class of its quantizer; without one the payload is not quantized.
2. The members' shapes tell how much of a payload is valid: what follows is not written.
3. The scales of each member lie in a buffer of their own within the flat one, padded like those of
   a single tensor; the valid ones of all members follow each other in one part.
4. Where only an accelerator knows the shapes the extent is unknown: asking would wait for it.

>>> members_of(SimpleNamespace(tensor_shapes=[(4, 32), (2, 32)]))
[(4, 32), (2, 32)]
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from bitstep.fingerprint.parts import QuantizedPart, found, raw, reason_of, with_meta
from bitstep.fingerprint.scales import Scaling, region, valid_scales

Shapes = list[tuple[int, ...]]

_QUANTIZERS: Final = {
    "MXFP8Quantizer": Scaling.MXFP8,
    "NVFP4Quantizer": Scaling.NVFP4,
    "Float8Quantizer": Scaling.TENSOR,
    "Float8CurrentScalingQuantizer": Scaling.TENSOR,
}


def read(tensor: Any) -> tuple[QuantizedPart, ...]:
    """The parts of a grouped tensor, and where each member begins as part `offsets`."""
    scaling, shapes = _scaling(tensor.quantizer), members_of(tensor)
    facts = {
        "scaling": None if scaling is None else scaling.value,
        "members": tensor.num_tensors,
        "swizzled": _is_swizzled(tensor),
        "row_scaled": getattr(tensor, "row_scaled_nvfp4", None),
    }
    parts = [*_parts(tensor, scaling, shapes), found("offsets", tensor.tensor_offsets)]
    return with_meta(tensor, parts, facts)


def members_of(tensor: Any) -> Shapes | None:
    """The shape of each member; None where the host does not know them."""
    if tensor.tensor_shapes:
        return [tuple(shape) for shape in tensor.tensor_shapes]
    count, (rows, columns) = tensor.num_tensors, tensor.logical_shape
    first, last = tensor.first_dims, tensor.last_dims
    if any(dims is not None and not dims.is_cpu for dims in (first, last)):
        return None
    if first is None and last is None:
        return [(rows // count, columns)] * count
    firsts = [rows] * count if first is None else first.tolist()
    lasts = [columns] * count if last is None else last.tolist()
    return list(zip(firsts, lasts, strict=True))


def _parts(tensor: Any, scaling: Scaling | None, shapes: Shapes | None) -> Iterator[QuantizedPart]:
    for data, scale, amax, column in (
        (tensor.rowwise_data, tensor.scale_inv, tensor.amax, False),
        (tensor.columnwise_data, tensor.columnwise_scale_inv, tensor.columnwise_amax, True),
    ):
        suffix = ".column" if column else ""
        scale, amax = (None, None) if data is None else (scale, amax)
        yield found("payload" + suffix, _payload(data, scaling, shapes), reason_of(data))
        scales = _scales(scale, scaling, shapes, column, _is_swizzled(tensor))
        yield found("scale" + suffix, scales, reason_of(scale))
        yield found("amax" + suffix, _amax(amax, tensor, shapes), reason_of(amax))


def _payload(data: Tensor | None, scaling: Scaling | None, shapes: Shapes | None) -> Tensor | None:
    if data is None or shapes is None:
        return None
    size = sum(map(prod, shapes)) // (2 if scaling is Scaling.NVFP4 else 1)
    return data[:size] if data.dim() == 1 and len(data) >= size else None


def _scales(
    buffer: Tensor | None,
    scaling: Scaling | None,
    shapes: Shapes | None,
    column: bool,
    swizzled: bool,
) -> Tensor | None:
    if buffer is None or scaling is None or shapes is None:
        return None
    if scaling is Scaling.TENSOR:
        return buffer[: len(shapes)] if len(buffer) >= len(shapes) else None
    flat, valid, at = raw(buffer).reshape(-1), [], 0
    for shape in shapes:
        m, k = prod(shape[:-1]), shape[-1]
        size = prod(region(scaling, m, k, column).allocated)
        one = valid_scales(flat[at : at + size], scaling, m, k, column, swizzled)
        if one is None:
            return None
        valid.append(one.reshape(-1))
        at += size
    return torch.cat(valid)


def _amax(amax: Tensor | None, tensor: Any, shapes: Shapes | None) -> Tensor | None:
    """One for each member, or for each row of all of them."""
    if amax is None or shapes is None:
        return None
    rows = getattr(tensor, "row_scaled_nvfp4", False)
    size = sum(prod(shape[:-1]) for shape in shapes) if rows else len(shapes)
    return amax.reshape(-1)[:size] if amax.numel() >= size else None


def _is_swizzled(tensor: Any) -> bool:
    return bool(getattr(tensor, "_with_gemm_swizzled_scales", False))


def _scaling(quantizer: Any) -> Scaling | None:
    """What shares a scale, by the class of the quantizer or one that it is made from."""
    for kind in type(quantizer).__mro__:
        if kind.__name__ in _QUANTIZERS:
            return _QUANTIZERS[kind.__name__]
        if kind.__name__ == "Float8BlockQuantizer":
            return Scaling.SQUARES if quantizer.block_scaling_dim == 2 else Scaling.LINES
    return None
