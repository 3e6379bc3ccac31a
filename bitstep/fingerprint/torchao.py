"""torchao's quantized tensors, known by module and fields: torchao is not imported.

1. `MXTensor`, `NVFP4Tensor`, `Float8Tensor` and their like have `qdata` and `scale`, and say which
   other fields they have.
2. `Float8TrainingTensor` has `_data` and `_scale`.
3. Scales have no padding but where they are swizzled: then the valid ones are put in order.

>>> is_known(torch.ones(2))
False
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Final

from torch import Tensor

from bitstep.fingerprint.parts import UNKNOWN, QuantizedPart, found, with_meta
from bitstep.fingerprint.parts import raw as bytes_of
from bitstep.fingerprint.scales import unswizzled

_NAMES: Final = {
    "qdata": "payload",
    "scale": "scale",
    "per_tensor_scale": "amax",
    "act_per_tensor_scale": "amax.activation",
}
_SAID: Final = ("orig_dtype", "dtype", "is_swizzled_scales")
"""Facts that meta has under other keys."""
_TRAINING: Final = ("_linear_mm_config", "_gemm_input_role", "_axiswise_dim")


def is_known(tensor: Any) -> bool:
    """Whether this is a quantized tensor of torchao."""
    kinds = type(tensor).__mro__
    if not any(kind.__module__.partition(".")[0] == "torchao" for kind in kinds):
        return False
    return _has(tensor, "qdata", "scale") or _has(tensor, "_data", "_scale", "_orig_dtype")


def read(tensor: Any) -> tuple[QuantizedPart, ...]:
    """The parts of a tensor that `is_known`."""
    if not hasattr(tensor, "qdata"):
        parts = found("payload", tensor._data), found("scale", tensor._scale)
        codes = {"codes": tensor._data.dtype}
        return with_meta(tensor, parts, codes | _facts(tensor, _TRAINING))
    swizzled = bool(getattr(tensor, "is_swizzled_scales", False))
    facts = {"codes": tensor.qdata.dtype, "scales": tensor.scale.dtype, "swizzled": swizzled}
    names = _listed(tensor, "tensor_attribute_names")
    return with_meta(tensor, _parts(tensor, swizzled), facts | _facts(tensor, names))


def _parts(tensor: Any, swizzled: bool) -> Iterator[QuantizedPart]:
    for field in _listed(tensor, "tensor_data_names"):
        buffer = getattr(tensor, field, None)
        name = _NAMES.get(field, field)
        if field == "scale" and swizzled and buffer is not None:
            buffer = _in_order(tensor, bytes_of(buffer))
            yield found(name, buffer, UNKNOWN)
        else:
            yield found(name, buffer)


def _in_order(tensor: Any, scale: Tensor) -> Tensor | None:
    """Swizzled scales in the order that they have where they are not: a row per row."""
    qdata, shape = tensor.qdata, tuple(tensor.shape)
    turned = qdata.stride(-2) < qdata.stride(-1)
    if turned:
        scale, shape = scale.transpose(-2, -1), (*shape[:-2], shape[-1], shape[-2])
    columns = shape[-1] // tensor.block_size
    valid = unswizzled(scale, prod(shape[:-1]), columns)
    if valid is None:
        return None
    valid = valid.view(*shape[:-1], columns)
    return valid.transpose(-2, -1) if turned else valid


def _listed(tensor: Any, which: str) -> list[str]:
    """Names of fields, as a class of torchao lists them, optional ones last."""
    return [*getattr(tensor, which, ()), *getattr(tensor, f"optional_{which}", ())]


def _facts(tensor: Any, names: list[str] | tuple[str, ...]) -> dict[str, object]:
    return {name.strip("_"): getattr(tensor, name, None) for name in names if name not in _SAID}


def _has(tensor: Any, *fields: str) -> bool:
    return all(hasattr(tensor, field) for field in fields)
