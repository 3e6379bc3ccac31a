"""What a part of a quantized tensor is, and what the readers of all formats do alike.

1. `found` makes a part of a tensor: its bytes as they are, or nothing and the reason.
2. `with_meta` adds the meta part: a line of "key=value" words, the same in every run.

>>> found("payload.column", None)
QuantizedPart(name='payload.column', tensor=None, text='absent', shape=())
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

ABSENT, INVALID, UNKNOWN = "absent", "invalid", "unknown"
"""Why a part is not there: nobody made it; it is of older values; what of it is valid is not
known."""


class QuantizedPart(NamedTuple):
    """One part of a quantized tensor."""

    name: str
    """payload, scale, amax or meta; of the column copy payload.column ..."""
    tensor: Tensor | None
    """Its bits: a view, or a copy where scales were swizzled. None: of meta, and of a part that
    is not there."""
    text: str = ""
    """Of meta its words; of a part that is not there why: absent, invalid or unknown."""
    shape: tuple[int, ...] = ()
    """Of meta the logical shape of the tensor."""

    @property
    def is_text(self) -> bool:
        """Whether it is a meta part that is there: words instead of bits."""
        return self.name.startswith("meta") and "=" in self.text


def found(name: str, tensor: Tensor | None, reason: str = ABSENT) -> QuantizedPart:
    """A part that holds this tensor, or that is missing for this reason."""
    if tensor is None:
        return QuantizedPart(name, None, reason)
    return QuantizedPart(name, raw(tensor))


def reason_of(buffer: Tensor | None) -> str:
    """Why a part of a buffer is not there: no buffer, or one of an unknown extent."""
    return ABSENT if buffer is None else UNKNOWN


def raw(tensor: Tensor) -> Tensor:
    """Codes and scales of one byte as bytes: which number a code stands for is said by meta."""
    return tensor.detach().view(torch.uint8) if tensor.itemsize == 1 else tensor.detach()


def with_meta(
    tensor: Any, parts: Iterable[QuantizedPart], facts: Mapping[str, object], name: str = "meta"
) -> tuple[QuantizedPart, ...]:
    """The parts, and after them a meta part: class, dtype and facts, then what is not there."""
    known = tuple(parts)
    words = {"class": type(tensor).__name__, "dtype": dtype_of(tensor), **facts}
    for reason in dict.fromkeys(part.text for part in known if _is_missing(part)):
        names = [part.name for part in known if _is_missing(part) and part.text == reason]
        words[reason] = ",".join(names)
    text = " ".join(f"{key}={word(value)}" for key, value in words.items())
    return (*known, QuantizedPart(name, None, text, shape_of(tensor)))


def _is_missing(part: QuantizedPart) -> bool:
    return part.tensor is None and not part.name.startswith("meta")


def word(value: object) -> str:
    """A fact without blanks, and without what is another one in every process: an address.

    >>> word(torch.float8_e4m3fn), word(True), word([1, 32])
    ('float8_e4m3fn', 'True', '1,32')
    """
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bool | int | float | str | None):
        return str(value).replace(" ", "_")
    if isinstance(value, list | tuple):
        return ",".join(map(word, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [
            f"{one.name}:{word(getattr(value, one.name))}" for one in dataclasses.fields(value)
        ]
        return f"{type(value).__name__}({','.join(fields)})"
    # The enumerations of Transformer Engine are made by pybind.
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else type(value).__name__


def dtype_of(tensor: Any) -> str:
    """The dtype that a quantized tensor stands for; a storage has a field for it."""
    if isinstance(tensor, Tensor):
        return word(tensor.dtype)
    return word(getattr(tensor, "_dtype", None) or getattr(tensor, "fake_dtype", None))


def shape_of(tensor: Any) -> tuple[int, ...]:
    """The logical shape; of a storage it follows from a payload: () where there is none."""
    if isinstance(tensor, Tensor):
        return tuple(tensor.shape)
    if hasattr(tensor, "logical_shape"):
        return tuple(tensor.logical_shape)
    row, column = (_payload(tensor, names) for names in (_ROW, _COLUMN))
    packed = 2 if hasattr(tensor, "_fp4_dtype") else 1
    if row is not None and row.dim():
        return (*row.shape[:-1], row.shape[-1] * packed)
    if column is None or not column.dim():
        return ()
    last = (*column.shape[:-1], column.shape[-1] * packed)
    # All column copies but that of MXFP8 are stored with the last dimension first.
    is_turned = hasattr(tensor, "_transpose") or packed == 2 or hasattr(tensor, "_is_2D_scaled")
    return (*last[1:], last[0]) if is_turned else last


_ROW = ("_rowwise_data", "_data", "_hp_data")
_COLUMN = ("_columnwise_data", "_transpose")


def _payload(tensor: Any, names: Iterable[str]) -> Tensor | None:
    return next((of for name in names if (of := getattr(tensor, name, None)) is not None), None)
