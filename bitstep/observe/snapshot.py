"""The training state of this process, tensor by tensor: parameters, gradients, moments, buffers.

1. A `Source` yields named tensors as they are right now.
2. A DTensor yields its local part and where that part lies in the logical tensor. An engine that
   cuts its tensors itself has a source of its own, which says where each piece lies.
3. `read` digests them; `root_of` makes one number of many, `logical_of` one that adds up over the
   processes, whatever the cut.

The optimizers' state goes by parameter name, never by list position.

>>> root_of([Row("Net.weight", "param", Digest(1, "float32", (2,)), None)])
2464820469181675452
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from bitstep.errors import FingerprintError
from bitstep.fingerprint import part
from bitstep.fingerprint.logical import contribution
from bitstep.fingerprint.quantized import QuantizedPart
from bitstep.observe.digests import Digest, digest_of, digest_of_part, quantized_parts
from bitstep.records import Box, Fingerprint, Flag, Place

_T = TypeVar("_T")
_PLAIN: Final = frozenset((Tensor, torch.nn.Parameter))


class Item(NamedTuple):
    """A tensor of the state, under its name and slot."""

    name: str
    slot: str
    tensor: Tensor
    place: Place | None = None
    """Where it lies in the logical tensor; None: it says so itself, or is all of it."""
    main: bool = False
    """Whether this process counts it, of all copies, for the logical root."""


class Row(NamedTuple):
    """The digest of one tensor of the state."""

    name: str
    slot: str
    digest: Digest
    place: Place | None
    main: bool = False
    part: str = "bits"
    """Of a quantized tensor its part, for which the row is."""


class Held:
    """The items of a stream as it is now, of a source that knows what their names depend on: where
    `key` and the layouts of `tensors` are as they were, so is all but the bits."""

    def __init__(
        self,
        key: Hashable,
        tensors: Sequence[Tensor],
        cut: Callable[[], Iterable[tuple[int, Item]]],
    ) -> None:
        """`cut` gives each item and which of the tensors it is, or is a view of."""
        self.key = key
        self.tensors = tensors
        self.cut = cut

    def __iter__(self) -> Iterator[Item]:
        return (item for _, item in self.cut())


class Source(Protocol):
    """Where the training state of a program is found."""

    def parameters(self) -> Iterable[Item]:
        """Every parameter that this process holds, or part of one."""

    def gradients(self) -> Iterable[Item]:
        """The gradient of each, where it has one."""

    def moments(self) -> Iterable[Item]:
        """What the optimizers keep for parameters."""

    def buffers(self) -> Iterable[Item]:
        """Tensors that are neither."""

    def generators(self) -> dict[str, Fingerprint]:
        """The state of every random stream of this process."""


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
    named = listed(items)
    parts = [(i.tensor, i.place) if i.place is not None else local(i.tensor) for i in named]
    rows = [
        Row(name, slot, _part(tensor, place) if place else _whole(tensor), place, main)
        for (name, slot, _, _, main), (tensor, place) in zip(named, parts, strict=True)
    ]
    if not any(row.digest.flags for row in rows):
        return rows
    return [of for row, (t, _) in zip(rows, parts, strict=True) for of in by_parts(row, t)]


def listed(items: Iterable[_T]) -> list[_T]:
    """What a source yields. Adapters cut tensors into views, which no mode of the program sees."""
    with _disable_current_modes(), torch.no_grad():
        return list(items)


def by_parts(row: Row, tensor: Tensor) -> Iterator[Row]:
    """The row of a tensor; of a quantized one, which has no bits of its own, one for each part."""
    parts = quantized_parts(tensor) if row.digest.flags else ()
    if not parts:
        yield row
    for one in parts:
        place = None if row.place is None else _place_of(one, row.place)
        if one.tensor is None or place is None:
            digest = digest_of_part(one)
        else:
            digest = _part(one.tensor, place)
        main = row.main and (row.place is None or place is not None)
        yield row._replace(digest=digest, place=place, main=main, part=one.name)


def _place_of(part: QuantizedPart, place: Place) -> Box | None:
    """Where a part of a sharded tensor lies: as the tensor does, its last dimension divided by how
    many elements share a byte or a scale. None: this cannot be said, so that it does not count in
    sums over shards."""
    sizes = () if part.tensor is None else tuple(part.tensor.shape)
    if not isinstance(place, Box) or part.name.endswith(".column") or not sizes or 0 in sizes:
        return None
    if len(sizes) != len(place.sizes) or sizes[:-1] != place.sizes[:-1]:
        return None
    share = place.sizes[-1] // sizes[-1]
    ends = place.shape[-1], place.offsets[-1], place.sizes[-1]
    if share == 0 or place.sizes[-1] != share * sizes[-1] or any(end % share for end in ends):
        return None
    shape, offsets = ((*full[:-1], full[-1] // share) for full in (place.shape, place.offsets))
    return Box(shape, offsets, sizes)


def _whole(tensor: Tensor) -> Digest:
    digest = digest_of(tensor)
    # Heads are made of how a shape is printed, and roots must not change: that of an empty tensor
    # has always been a torch.Size.
    return digest if 0 in digest.shape else digest._replace(shape=tuple(digest.shape))


def _part(tensor: Tensor, place: Place) -> Digest:
    """The digest of a part: its bits in their place in the logical tensor."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    try:
        with _disable_current_modes(), torch.no_grad():
            return Digest(part(tensor.detach(), place).sum, dtype, place.shape)
    except FingerprintError:
        return Digest(0, dtype, place.shape, Flag.SKIPPED)


_heads: dict[tuple[Any, ...], int] = {}


def root_of(rows: Iterable[Row]) -> int:
    """64 bits over names, slots, places and digests, whatever the order."""
    pairs = sorted((head_of(row), row.digest.sum) for row in rows)
    return root_of_table(np.array(pairs, np.uint64))


def root_of_table(pairs: npt.NDArray[np.uint64]) -> int:
    """The same, of what `head_of` says of each row, and its digest, sorted: two columns."""
    raw = hashlib.blake2b(b"bitstep recorder root\n" + pairs.tobytes(), digest_size=8).digest()
    return int.from_bytes(raw, "little")


def logical_of(rows: Iterable[Row]) -> int:
    """What this process adds to the logical root of a stream: the pieces that it counts."""
    return sum(factor_of(row) * int(row.digest.sum) for row in rows if row.main) % 2**64


def factor_of(row: Row) -> int:
    """What the digest of a row is multiplied with in the logical root."""
    return contribution(row.name, _slot(row), row.digest.dtype, row.digest.shape, 1)


def _slot(row: Row) -> str:
    return row.slot if row.part == "bits" else f"{row.slot}:{row.part}"


def head_of(row: Row) -> int:
    """64 bits over what names a row; remembered, because every step has the same."""
    key = (row.name, row.slot, row.digest.dtype, row.digest.shape, row.place, row.part)
    head = _heads.get(key)
    if head is None:
        names = (row.name, _slot(row), *key[2:5])
        raw = hashlib.blake2b(repr(names).encode("utf-8", "backslashreplace"), digest_size=8)
        head = _heads[key] = int.from_bytes(raw.digest(), "little")
    return head
