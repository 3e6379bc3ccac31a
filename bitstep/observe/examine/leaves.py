"""Any value -> its leaves, each with a digest that says whether two are the same bits.

1. Tensors and arrays have the digest of their fingerprint, numbers that of their value, whatever
   holds them: 2, 2.0 and tensor(2.0) are one number.
2. A long list of whole numbers is one leaf: the state of Python's generator is one.
3. A leaf that another may equal by chance (a small number, zeros) is `common`: to be recognised, it
   needs its name as well.

>>> [leaf.path for leaf in flatten({"model": {"w": torch.zeros(2)}, "step": 3})]
['model.w', 'step']
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from bitstep.errors import FingerprintError
from bitstep.fingerprint import fingerprint

LONG: Final = 32
"""Whole numbers in a list that are taken as one leaf."""
DEEPEST: Final = 12
COMMON_BELOW: Final = 1 << 20
"""A whole number below it is met anywhere."""


class Leaf(NamedTuple):
    """One value that is looked for in a checkpoint, or found in one."""

    path: str
    """ "model.0.weight"."""
    digest: str
    common: bool
    said: str
    """For a person: "float32 (6,)", "3"."""


def flatten(value: Any, path: str = "", depth: int = 0) -> Iterator[Leaf]:
    """Every tensor, array and number in a value made of mappings and lists."""
    if isinstance(value, Mapping) and depth < DEEPEST:
        for key, item in list(value.items()):
            yield from flatten(item, _joined(path, key), depth + 1)
    elif isinstance(value, list | tuple | set) and depth < DEEPEST:
        items = list(value)
        if len(items) >= LONG and all(type(item) is int for item in items):
            yield whole_numbers(path, items)
            return
        for at, item in enumerate(items):
            yield from flatten(item, _joined(path, at), depth + 1)
    elif (leaf := leaf_of(path, value)) is not None:
        yield leaf


def leaf_of(path: str, value: Any) -> Leaf | None:
    """The leaf of a tensor, an array or a number; None for anything else."""
    if isinstance(value, Tensor):
        return of_tensor(path, value)
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind in "ui" and value.size >= LONG and value.ndim == 1:
            return whole_numbers(path, value.tolist())
        return _of_array(path, np.asarray(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(path, value)
    return None


def number(path: str, value: int | float) -> Leaf:
    """The leaf of a number."""
    is_whole = isinstance(value, int) or value.is_integer()
    text = str(int(value)) if is_whole else repr(float(value))
    common = abs(value) < COMMON_BELOW if is_whole else len(text) < 8
    return Leaf(path, f"number {text}", common, text)


def whole_numbers(path: str, values: list[int]) -> Leaf:
    """The leaf of many whole numbers in a row."""
    raw = hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()
    return Leaf(path, f"numbers {raw}", False, f"{len(values)} whole numbers")


def of_tensor(path: str, tensor: Tensor) -> Leaf:
    """The leaf of a tensor."""
    inner = getattr(tensor, "_local_tensor", tensor)
    dtype, shape = str(inner.dtype).removeprefix("torch."), tuple(inner.shape)
    said = f"{dtype} {shape}"
    with _disable_current_modes(), torch.no_grad():
        plain = inner.detach()
        try:
            if plain.numel() == 1 and not plain.is_complex() and dtype != "bool":
                return number(path, plain.item())
            found = fingerprint(plain)
            common = plain.numel() == 0 or _is_constant(plain)
        except (FingerprintError, RuntimeError, NotImplementedError, ValueError, OverflowError):
            return Leaf(path, "unread", True, f"{said}, which cannot be read")
    return Leaf(path, f"{dtype} {shape} {found.sum:016x}", common, said)


def _is_constant(tensor: Tensor) -> bool:
    flat = tensor.reshape(-1)
    return bool((flat == flat[0]).all())


def _of_array(path: str, array: np.ndarray[Any, Any]) -> Leaf | None:
    if array.dtype.kind not in "biuf":
        return None
    try:
        return of_tensor(path, torch.from_numpy(np.ascontiguousarray(array)))
    except TypeError:  # a dtype that torch does not have
        raw = hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()
        said = f"{array.dtype} {array.shape}"
        return Leaf(path, f"{said} {raw}", False, said)


def _joined(path: str, key: Any) -> str:
    word = str(key) if isinstance(key, str | int) else type(key).__name__
    return f"{path}.{word}" if path else word
