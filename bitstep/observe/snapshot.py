"""The training state of this process, tensor by tensor: parameters, gradients, moments, buffers.

1. `parameters`, `gradients`, `moments`, `buffers` yield named tensors as they are right now.
2. A DTensor yields its local part and where that part lies in the logical tensor.
3. `read` digests them; `root` makes one number of many.

The optimizers' state goes by parameter name, never by list position.

>>> root_of([Row("Net.weight", "param", Digest(1, "float32", (2,)), None)])
1361443046217353453
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from bitstep.errors import FingerprintError
from bitstep.fingerprint import part
from bitstep.observe.digests import Digest, digests_of
from bitstep.observe.names import Names, nested
from bitstep.observe.optimizers import Optimizers
from bitstep.records import Box, Flag, Place

_PLAIN: Final = frozenset((Tensor, torch.nn.Parameter))


class Item(NamedTuple):
    """A tensor of the state, under its name and slot."""

    name: str
    slot: str
    tensor: Tensor


class Row(NamedTuple):
    """The digest of one tensor of the state."""

    name: str
    slot: str
    digest: Digest
    place: Place | None


def parameters(names: Names) -> Iterator[Item]:
    """Every parameter of every root, sharded or not."""
    return (Item(name, "param", tensor) for name, tensor in names.parameters())


def buffers(names: Names) -> Iterator[Item]:
    """Every buffer, then every tensor that hangs on a module as a plain attribute."""
    for name, tensor in names.buffers():
        yield Item(name, "buffer", tensor)
    for name, tensor in names.attributes():
        yield Item(name, "attr", tensor)


def gradients(items: Iterable[Item]) -> Iterator[Item]:
    """The gradient of every one of these parameters that has one."""
    for item in items:
        gradient = item.tensor.grad
        if gradient is not None:
            yield Item(item.name, "grad", gradient)


def moments(optimizers: Optimizers, names: Names) -> Iterator[Item]:
    """Every tensor that an optimizer keeps for a parameter."""
    known = {id(item.tensor): item.name for item in parameters(names)}
    for which, optimizer in optimizers.numbered():
        for at, parameter in enumerate(_in_groups(optimizer)):
            name = known.get(id(parameter), f"optimizer{which}.{at}")
            state = optimizer.state.get(parameter, {}) if hasattr(optimizer, "state") else {}
            for key, value in state.items():
                for slot, tensor in nested(f"state.{key}", value):
                    yield Item(name, slot, tensor)


def strays(optimizers: Optimizers, names: Names) -> Iterator[Item]:
    """Parameters that an optimizer updates and no root has."""
    known = {id(item.tensor) for item in parameters(names)}
    for which, optimizer in optimizers.numbered():
        for at, parameter in enumerate(_in_groups(optimizer)):
            if id(parameter) not in known:
                yield Item(f"optimizer{which}.{at}", "param", parameter)


def _in_groups(optimizer: Any) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from (p for p in group["params"] if isinstance(p, Tensor))


def local(tensor: Tensor) -> tuple[Tensor, Place | None]:
    """The part of a tensor that this process holds, and where it lies; no place: all of it."""
    if type(tensor) in _PLAIN:
        return tensor, None
    inner = getattr(tensor, "_local_tensor", None)
    if inner is None:
        return tensor, None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    shape = tuple(tensor.shape)
    if tuple(sizes) != tuple(inner.shape):
        return inner, None
    return inner, Box(shape, tuple(offsets), tuple(sizes))


def read(items: Iterable[Item]) -> list[Row]:
    """The digests of tensors, now."""
    named = list(items)
    parts = [local(item.tensor) for item in named]
    whole = digests_of([tensor for tensor, _ in parts])
    return [
        Row(name, slot, digest if place is None else _part(tensor, place, digest), place)
        for (name, slot, _), (tensor, place), digest in zip(named, parts, whole, strict=True)
    ]


def _part(tensor: Tensor, place: Place, plain: Digest) -> Digest:
    """The digest of a part: its bits in their place in the logical tensor."""
    dtype = plain.dtype.partition("[")[0]
    try:
        with _disable_current_modes(), torch.no_grad():
            return Digest(part(tensor.detach(), place).sum, dtype, place.shape)
    except FingerprintError:
        return Digest(0, dtype, place.shape, Flag.SKIPPED)


_heads: dict[tuple[Any, ...], int] = {}


def root_of(rows: Iterable[Row]) -> int:
    """64 bits over names, slots, places and digests, whatever the order."""
    pairs = [(_head(row), row.digest.sum) for row in rows]
    table = np.array(sorted(pairs), np.uint64).tobytes()
    raw = hashlib.blake2b(b"bitstep recorder root\n" + table, digest_size=8).digest()
    return int.from_bytes(raw, "little")


def _head(row: Row) -> int:
    """64 bits over what names a row; remembered, because every step has the same."""
    key = (row.name, row.slot, row.digest.dtype, row.digest.shape, row.place)
    head = _heads.get(key)
    if head is None:
        raw = hashlib.blake2b(repr(key).encode("utf-8", "backslashreplace"), digest_size=8)
        head = _heads[key] = int.from_bytes(raw.digest(), "little")
    return head
