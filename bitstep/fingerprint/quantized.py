"""A quantized tensor -> its parts, each with bits of its own: payload, scale, amax and meta.

1. `parts_of` knows a class by its fields; Transformer Engine and torchao are not imported.
2. The payload is the codes as raw bytes. Nothing is dequantized: -0 and 0, and two pairs of code
   and scale with the same product, stay different.
3. Of the scales the valid region counts, and not their layout: swizzled scales are put in order.
4. A second copy for the other direction of a product has parts of its own, `payload.column`,
   `scale.column`. What is absent, stale or of unknown extent is a part without a tensor.
5. `meta` is a line of text: the class and every fact that decides what the bytes mean.

>>> parts_of(torch.ones(2)) is None
True
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from bitstep.fingerprint import grouped, torchao
from bitstep.fingerprint.parts import (
    ABSENT,
    INVALID,
    QuantizedPart,
    found,
    raw,
    reason_of,
    shape_of,
    with_meta,
)
from bitstep.fingerprint.scales import Scaling, valid_scales

__all__ = ["QuantizedPart", "is_quantized", "parts_of"]

Parts = tuple[QuantizedPart, ...]
Reader = Callable[[Any], Parts]
_PLAIN: Final = (Tensor, torch.nn.Parameter)
_readers: dict[type, Reader | None] = {}


def parts_of(tensor: Any) -> Parts | None:
    """The parts of a quantized tensor, payload first and meta last; None for anything else.

    Args:
        tensor: a tensor, or a storage of Transformer Engine, which is no tensor. Not changed. Call
            it outside of dispatch modes: it takes views, and copies swizzled scales.

    A class has the same parts every time: those that an object lacks are there without a tensor.
    """
    reader = _reader(tensor)
    return None if reader is None else reader(tensor)


def is_quantized(tensor: Any) -> bool:
    """Whether an object is a quantized tensor or storage."""
    return _reader(tensor) is not None


def _reader(tensor: Any) -> Reader | None:
    """How to read objects of this class: by the fields of the first one that was seen."""
    kind = type(tensor)
    if kind in _PLAIN:
        return None
    if kind not in _readers:
        _readers[kind] = _by_fields(tensor)
    return _readers[kind]


def _by_fields(tensor: Any) -> Reader | None:
    if torchao.is_known(tensor):
        return torchao.read
    for fields, reader in _FIELDS:
        if all(hasattr(tensor, field) for field in fields):
            return reader
    return None


def _float8(tensor: Any) -> Parts:
    """One scale for all. The column copy is a cache: marked invalid, it is of older values."""
    stale = tensor._transpose_invalid and tensor._transpose is not None
    parts = (
        found("payload", tensor._data),
        found("scale", tensor._scale_inv),
        found("payload.column", None if stale else tensor._transpose, INVALID if stale else ABSENT),
    )
    return with_meta(tensor, parts, {"codes": tensor._fp8_dtype})


def _mxfp8(tensor: Any) -> Parts:
    facts = {"codes": tensor._fp8_dtype, "swizzled": _is_swizzled(tensor)}
    return with_meta(tensor, _both_ways(tensor, Scaling.MXFP8), facts)


def _nvfp4(tensor: Any) -> Parts:
    row, row_scale, column, column_scale = _both_ways(tensor, Scaling.NVFP4)
    amaxes = found("amax", tensor._amax_rowwise), found("amax.column", tensor._amax_columnwise)
    parts = row, row_scale, amaxes[0], column, column_scale, amaxes[1]
    facts = {
        "codes": tensor._fp4_dtype,
        "swizzled": _is_swizzled(tensor),
        "row_scaled": getattr(tensor, "_row_scaled_nvfp4", None),
        "4over6": getattr(tensor, "_nvfp4_use_4over6", None),
        "e4m3_max": getattr(tensor, "_nvfp4_e4m3_max", None),
    }
    return with_meta(tensor, parts, facts)


def _float8_blocks(tensor: Any) -> Parts:
    scaling = Scaling.SQUARES if tensor._is_2D_scaled else Scaling.LINES
    facts = {"codes": tensor._fp8_dtype, "block": scaling.value}
    return with_meta(tensor, _both_ways(tensor, scaling), facts)


def _both_ways(tensor: Any, scaling: Scaling) -> Parts:
    """Payload and scale of both directions. Their quantizations are independent of each other."""
    return (
        *_one_way(tensor, scaling, tensor._rowwise_data, tensor._rowwise_scale_inv, False),
        *_one_way(tensor, scaling, tensor._columnwise_data, tensor._columnwise_scale_inv, True),
    )


def _one_way(
    tensor: Any, scaling: Scaling, data: Tensor | None, scale: Tensor | None, column: bool
) -> Parts:
    suffix = ".column" if column else ""
    payload = found("payload" + suffix, data)
    if data is None or scale is None:  # Scales without codes are those of a former payload.
        return payload, found("scale" + suffix, None)
    shape = shape_of(tensor)
    m, k = prod(shape[:-1]), (shape or (0,))[-1]
    valid = valid_scales(raw(scale), scaling, m, k, column, _is_swizzled(tensor))
    return payload, found("scale" + suffix, valid, reason_of(scale))


def _is_swizzled(tensor: Any) -> bool:
    return bool(getattr(tensor, "_with_gemm_swizzled_scales", False))


def _identity(tensor: Any) -> Parts:
    """No quantization: a tensor in its own precision, where a quantized one might be."""
    return with_meta(tensor, [found("payload", tensor._hp_data)], {})


def _hybrid(tensor: Any) -> Parts:
    """A storage per direction, of any formats. Of each its own direction counts, the other is not
    used; what a storage has for both, like one scale, is that of its direction."""
    row, column = (_of(of) for of in (tensor._rowwise_storage, tensor._columnwise_storage))
    rows = [part for part in row if not part.name.endswith(".column")]
    names = {part.name for part in column}
    columns = [
        part._replace(name=part.name.removesuffix(".column") + ".column")
        for part in column
        if part.name + ".column" not in names
    ]
    rows = [part._replace(name="meta.row") if part.name == "meta" else part for part in rows]
    facts = {"row": _kind(tensor._rowwise_storage), "column": _kind(tensor._columnwise_storage)}
    return with_meta(tensor, [*rows, *columns], facts)


def _of(storage: Any) -> Parts:
    absent = found("payload", None), found("scale", None), found("meta", None)
    return absent if storage is None else parts_of(storage) or absent


def _kind(storage: Any) -> str | None:
    return None if storage is None else type(storage).__name__


_FIELDS: Final[tuple[tuple[tuple[str, ...], Reader], ...]] = (
    (("_rowwise_storage", "_columnwise_storage"), _hybrid),
    (("_hp_data", "_quantizer"), _identity),
    (("_data", "_scale_inv", "_transpose", "_transpose_invalid"), _float8),
    (("_rowwise_data", "_columnwise_data", "_rowwise_scale_inv", "_amax_rowwise"), _nvfp4),
    (("_rowwise_data", "_columnwise_data", "_rowwise_scale_inv", "_is_2D_scaled"), _float8_blocks),
    (("_rowwise_data", "_columnwise_data", "_rowwise_scale_inv", "_fp8_dtype"), _mxfp8),
    (("rowwise_data", "columnwise_data", "scale_inv", "num_tensors", "tensor_shapes"),
     grouped.read),
)  # fmt: skip
"""Fields of Transformer Engine -> how to read them, the more telling ones first."""
