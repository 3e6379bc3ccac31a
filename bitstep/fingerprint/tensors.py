"""Any dense tensor, or a part of one, -> the sum of its logical bits.

1. `fingerprint` goes straight to the kernel for a contiguous tensor in host memory.
2. Any other layout is cut until a copy of a piece is small. The pieces are parts, so their sums
   add up, and a strided tensor costs no second tensor of memory.
3. A place becomes one or more runs of logical bytes. Host memory is read by `cpu`, any other
   device by `fallback`.
4. What has no bits to read (fake, sparse, sharded, freed ...) is refused with what to do.

>>> fingerprint(torch.ones(2, 3)).sum == fingerprint(torch.ones(3, 2).t()).sum
True
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from bitstep.errors import FingerprintError
from bitstep.fingerprint import cpu, fallback
from bitstep.fingerprint.definition import MASK, SIZES, seeds
from bitstep.fingerprint.places import first_byte, halves, runs, whole
from bitstep.records import Box, Fingerprint, FlatRange, Part, Place

_NAMES = {getattr(torch, name): name for name in SIZES if hasattr(torch, name)}
_STRIDED = torch.strided
_SPARSE = {
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
}
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_COPY_LIMIT = 1 << 20
"""Bytes of a copied piece in host memory: stays in the cache, where a strided copy is fastest."""


def fingerprint(tensor: Tensor, *, table: int = 1) -> Fingerprint:
    """The fingerprint of a whole tensor: any dtype, shape and strides, on any device.

    Args:
        tensor: not changed, not kept, and no autograd node is made for it.
        table: 2 for a second, independent sum.

    Raises:
        FingerprintError: the tensor has no dense bits of its own; the message says what to pass.
    """
    # Written out for speed: under 2 us for 4 KB, everything included.
    if (
        type(tensor) not in _PLAIN
        or not tensor.is_cpu
        or tensor.layout is not _STRIDED
        or not tensor.is_contiguous()
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        _check(tensor)
        box = whole(tensor.shape)
        return Fingerprint(_sum(tensor, box, 0, table), _NAMES[tensor.dtype], box.shape)
    try:
        name, shape = _NAMES[tensor.dtype], tuple(tensor.shape)
        size, address = tensor.nbytes, tensor.data_ptr()
        k, seed = cpu.TABLES[table]
    except (KeyError, RuntimeError):
        seeds(table)
        raise _refusal(tensor) from None
    if address == 0 and size:
        raise _refusal(tensor)
    return Fingerprint(cpu.run_sum(address, size, 0, k, seed), name, shape)


def part(tensor: Tensor, place: Place, *, table: int = 1) -> Part:
    """What a local tensor contributes to the logical tensor of which it is a part.

    Args:
        tensor: the local part, contiguous or not. For a `FlatRange` it may also be the bytes
            themselves, as uint8, which may begin and end inside an element.
        place: where the part lies in its logical tensor.
        table: 2 for a second, independent sum.

    Raises:
        FingerprintError: the part does not fit its place, or has no dense bits of its own.
    """
    _check(tensor)
    if isinstance(place, Box):
        _check_box(tensor, place)
        return Part(_sum(tensor, place, 0, table), tensor.nbytes)
    _check_range(tensor, place)
    return Part(_sum(tensor, whole(tensor.shape), place.start, table), tensor.nbytes)


def warm() -> None:
    """Compile the kernels, or load them from the cache, and compare them with the definition."""
    cpu.check()


def _sum(tensor: Tensor, box: Box, start: int, table: int) -> int:
    """The sum of a box of a larger tensor that begins at logical byte `start`."""
    seeds(table)
    values = _resolved(tensor)
    if tensor.is_cpu:
        return sum(_sum_of_piece(*piece, start, table) for piece in _pieces(values, box)) & MASK
    return int(fallback.box_sum(values, box, start, table).item()) & MASK


def _sum_of_piece(piece: Tensor, box: Box, start: int, table: int) -> int:
    data = piece.contiguous()
    run, loops = runs(box, data.itemsize)
    first = start + first_byte(box.shape, box.offsets, data.itemsize)
    k, seed = cpu.TABLES[table]
    if loops:
        return cpu.box_sum(data.data_ptr(), run, first, np.array(loops, np.int64), k, seed)
    return cpu.run_sum(data.data_ptr(), run, first, k, seed)


def _resolved(tensor: Tensor) -> Tensor:
    """The logical values as integers of the same size, in the same layout.

    Not every dtype has a copy kernel, and a view as another dtype of equal size suits any strides.
    """
    values = tensor.detach().resolve_conj().resolve_neg()
    return values.view(_WORDS[values.itemsize]) if values.itemsize in _WORDS else values


def _pieces(tensor: Tensor, box: Box) -> Iterator[tuple[Tensor, Box]]:
    """Cut until a piece is contiguous or its copy is small; nothing for an empty tensor.

    The cut is across the longest stride, so that a piece of a transposed tensor is dense in
    memory: cut across the first dimension it is read at 0.5 GB/s, this way at 2 to 4.
    """
    if tensor.numel() == 0:
        return
    if tensor.nbytes <= _COPY_LIMIT or tensor.is_contiguous():
        yield tensor, box
        return
    long = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    for half in halves(tensor, box, max(long, key=tensor.stride)):
        yield from _pieces(*half)


def _check_box(tensor: Tensor, box: Box) -> None:
    if not len(box.shape) == len(box.offsets) == len(box.sizes):
        raise FingerprintError(f"{box} has unequal numbers of dimensions: give each one per axis")
    if tuple(tensor.shape) != tuple(box.sizes):
        raise FingerprintError(
            f"a part of shape {tuple(tensor.shape)} was given the place of {tuple(box.sizes)}:"
            " pass the local tensor with its own sizes"
        )
    for full, offset, size in zip(box.shape, box.offsets, box.sizes, strict=True):
        if offset < 0 or offset + size > full:
            raise FingerprintError(
                f"{box} leaves its tensor: offsets plus sizes may not pass the shape"
            )


def _check_range(tensor: Tensor, place: FlatRange) -> None:
    if tensor.nbytes != place.nbytes:
        raise FingerprintError(
            f"a part of {tensor.nbytes} bytes was given the place of {place.nbytes}:"
            " pass the bytes of the range, and nothing else"
        )
    # The bytes of any dtype may come as uint8, so only its widest element bounds them.
    itemsize = 16 if tensor.dtype == torch.uint8 else tensor.itemsize
    if place.start < 0 or place.start + place.nbytes > math.prod(place.shape) * itemsize:
        raise FingerprintError(f"{place} leaves its tensor: start and nbytes count bytes from 0")


def _check(tensor: Tensor) -> None:
    plain = type(tensor) in _PLAIN or (
        isinstance(tensor, Tensor)
        and type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
        and not is_lazy(tensor)
    )
    if not plain or tensor.dtype not in _NAMES or tensor.layout is not _STRIDED:
        raise _refusal(tensor)
    if tensor.is_meta or tensor.is_nested:
        raise _refusal(tensor)
    try:
        freed = tensor.numel() > 0 and tensor.data_ptr() == 0
    except RuntimeError:
        raise _refusal(tensor) from None
    if freed:
        raise _refusal(tensor)


def _refusal(tensor: object) -> FingerprintError:
    return FingerprintError(f"no fingerprint of {_reason(tensor)}")


def _reason(tensor: object) -> str:
    kind = type(tensor).__name__
    if not isinstance(tensor, Tensor):
        return f"a {kind}: pass a torch tensor"
    if kind == "DTensor":
        return "a DTensor, of which only a part is here: pass to_local() and its place to part()"
    if kind == "AsyncCollectiveTensor":
        return "an AsyncCollectiveTensor, whose bits may be on their way: wait for it first"
    if is_lazy(tensor):
        return f"an {kind}: it has no bits before its first use"
    if tensor.is_nested:
        return f"a nested tensor ({tensor.layout}): pass values() and offsets(), each under a name"
    if tensor.layout in _SPARSE:
        return f"a sparse tensor ({tensor.layout}): pass its indices and values, each under a name"
    if tensor.layout is not _STRIDED:
        return f"a tensor of layout {tensor.layout}: pass its dense parts, or to_dense()"
    if tensor.is_quantized or tensor.dtype not in _NAMES:
        return f"a tensor of {tensor.dtype}: pass int_repr() and its scales, each under a name"
    if tensor.is_meta or kind == "FakeTensor":
        return f"a {kind} without data ({tensor.device}): pass a tensor that was computed"
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return f"a {kind}, a subclass whose bits are in inner tensors: pass those"
    return (
        f"a tensor of shape {tuple(tensor.shape)} without storage of its own (freed, or inside"
        " a torch.func transform): take it where it has data"
    )
