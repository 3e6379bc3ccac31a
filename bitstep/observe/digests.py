"""The digest of any tensor that a program handles, at the smallest cost that is still the bits.

1. A contiguous tensor in host memory goes straight to the kernel.
2. A dense tensor in another order of dimensions (a transposed weight) is read as the contiguous
   tensor that it is a view of: same bytes, no copy. Its dtype says so: "float32[1,0]".
3. One with gaps is read run by run (`strided`), without a copy. What is left goes through
   `fingerprint`, with every mode off, so that nobody records us.
4. On an accelerator the sum stays there as a tensor; the journal reads all of them once a step.
5. A quantized tensor has no bits of its own: SKIPPED. `quantized_parts` says what it is made of.

>>> digest_of(torch.ones(3, 2).t()) == digest_of(torch.ones(3, 2))._replace(dtype="float32[1,0]")
True
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from bitstep.errors import FingerprintError
from bitstep.fingerprint import cpu, fallback, fingerprint
from bitstep.fingerprint.definition import SIZES
from bitstep.fingerprint.places import whole
from bitstep.fingerprint.quantized import QuantizedPart, parts_of
from bitstep.observe.strided import runs_in_memory, strided_sum
from bitstep.records import Flag

DTYPES: Final = {getattr(torch, name): name for name in SIZES if hasattr(torch, name)}
PLAIN: Final = frozenset((Tensor, torch.nn.Parameter))
STRIDED: Final = torch.strided
_K, _SEED = cpu.TABLES[1]
_run_sum = cpu.run_sum
# To call a NamedTuple is a call of Python, which takes longer than to hash a small tensor.
_new = tuple.__new__
# A plain number: an enum's operators cost more than a small tensor's digest.
_SKIPPED = int(Flag.SKIPPED)


Gaps = tuple[tuple[int, ...], tuple[int, ...]] | None
"""Shape and strides of a tensor whose bytes lie in memory with gaps, or more than once."""


class Digest(NamedTuple):
    """What a row says about one tensor."""

    sum: Any
    """The sum as an int, or a 0-d int64 tensor on an accelerator, to be read modulo 2^64."""
    dtype: str
    shape: tuple[int, ...]
    flags: int = 0


def digest_of(tensor: Tensor) -> Digest:
    """The digest of a tensor. Never raises for what has no bits: SKIPPED, with the reason."""
    try:
        if type(tensor) in PLAIN and tensor.is_cpu and tensor.layout is STRIDED:
            name = DTYPES.get(tensor.dtype)
            if name is not None and not tensor.is_neg() and not tensor.is_conj():
                shape: tuple[int, ...] = tensor.shape
                if not tensor.is_contiguous():
                    shape, order = _dense(tensor.shape, tensor.stride())
                    if order is None:
                        return _strided(tensor, name)
                    name += order
                size, address = tensor.nbytes, tensor.data_ptr()
                if address or not size:
                    return _new(Digest, (_run_sum(address, size, 0, _K, _SEED), name, shape, 0))
    except RuntimeError:  # A nested tensor has no shape, and one inside of vmap no storage.
        pass
    return _slow(tensor)


def is_bare(tensor: Tensor) -> bool:
    """Whether a tensor is its bytes in host memory, and nothing else."""
    return tensor.is_cpu and is_bits(tensor)


def is_bits(tensor: Tensor) -> bool:
    """Whether a tensor is its bytes in memory, on any device."""
    if type(tensor) not in PLAIN or tensor.layout is not STRIDED or tensor.is_meta:
        return False
    if tensor.is_nested or is_wrapped(tensor) or tensor.is_conj() or tensor.is_neg():
        return False
    return tensor.dtype in DTYPES


def is_dense(tensor: Tensor) -> bool:
    """Whether the bytes of a tensor lie in memory without a gap, in any order of dimensions."""
    return tensor.is_contiguous() or _dense(tensor.shape, tensor.stride())[1] is not None


def name_and_shape(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape that the digest of a tensor has, which is its bytes in memory."""
    name, shape, _ = lies(tensor)
    return name, shape


def lies(tensor: Tensor) -> tuple[str, tuple[int, ...], Gaps]:
    """The same, and what the sum depends on beside the bytes in memory."""
    shape: tuple[int, ...] = tuple(tensor.shape)
    name = DTYPES[tensor.dtype]
    if tensor.is_contiguous():
        return name, shape, None
    dense, order = _dense(shape, tensor.stride())
    if order is None or not tensor.is_cpu:  # An accelerator reads in logical order.
        return name, shape, (shape, tensor.stride())
    return name + order, dense, None


def runs_of(tensor: Tensor) -> tuple[str, tuple[int, ...], Gaps, list[int], int]:
    """What `lies` says; where each run of bytes begins in memory, in logical order, and how long
    all of them are. Length 0: they are too short or too many."""
    name, shape, gaps = lies(tensor)
    if gaps is None:
        return name, shape, gaps, [0], tensor.nbytes
    offsets, run = runs_in_memory(*gaps, tensor.itemsize)
    return name, shape, gaps, offsets, run


is_wrapped: Any = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether vmap or grad of torch.func has put itself around a tensor, which then has no storage."""


def unwrapped(tensor: Tensor) -> Tensor:
    """What vmap or grad of torch.func have put themselves around."""
    while is_wrapped(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


_orders: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], str | None]] = {}


def _dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[tuple[int, ...], str | None]:
    """Shape of the contiguous tensor with the same bytes, and the order of its dimensions;
    None where there is no such tensor."""
    key = (shape, stride)
    found = _orders.get(key)
    if found is None:
        order = sorted(range(len(shape)), key=lambda dim: (-stride[dim], dim))
        expected = math.prod(shape)
        dense = True
        for dim in order:
            if shape[dim] != 1:
                expected //= max(shape[dim], 1)
                dense = dense and stride[dim] == expected
        name = f"[{','.join(map(str, order))}]" if dense else None
        found = (tuple(shape[dim] for dim in order) if dense else shape, name)
        _orders[key] = found
    return found


def _strided(tensor: Tensor, name: str) -> Digest:
    """A tensor with gaps in memory."""
    shape, address = tuple(tensor.shape), tensor.data_ptr()
    total = strided_sum(address, shape, tensor.stride(), tensor.itemsize) if address else None
    return _slow(tensor) if total is None else Digest(total, name, shape)


def _slow(tensor: Tensor) -> Digest:
    """Every other tensor, with all modes off: the copies that it may need are ours."""
    tensor = unwrapped(tensor)
    shape: tuple[int, ...] = ()
    with _disable_current_modes(), torch.no_grad():
        try:
            shape = () if tensor.is_nested else tuple(tensor.shape)
            if _is_on_accelerator(tensor):
                total = fallback.box_sum(_words(tensor), whole(tensor.shape), 0, 1)
                return Digest(total, DTYPES[tensor.dtype], shape)
            found = fingerprint(tensor)
        except (FingerprintError, RuntimeError) as error:
            # torch's RuntimeError says that there are no bits: a freed storage, a layout without a
            # copy. The row is SKIPPED, names it, and is counted.
            return Digest(0, f"{_dtype(tensor)}: {type(error).__name__}", shape, _SKIPPED)
    return Digest(found.sum, found.dtype, found.shape)


def quantized_parts(tensor: Tensor) -> tuple[QuantizedPart, ...]:
    """The parts of a quantized tensor; none of any other. Modes are off: views and copies are
    ours."""
    if type(tensor) in PLAIN:
        return ()
    with _disable_current_modes(), torch.no_grad():
        return parts_of(tensor) or ()


def digest_of_part(part: QuantizedPart) -> Digest:
    """The digest of a part. The dtype of meta is its text, of a part that is missing the reason."""
    if part.tensor is not None:
        return digest_of(part.tensor)
    if not part.is_text:
        return Digest(0, part.text, (), _SKIPPED)
    return Digest(_sum_of_text(part.text, part.shape), part.text, part.shape)


@functools.lru_cache(1024)
def _sum_of_text(text: str, shape: tuple[int, ...]) -> int:
    raw = hashlib.blake2b(f"{text} {shape}".encode(), digest_size=8).digest()
    return int.from_bytes(raw, "little")


def _is_on_accelerator(tensor: Tensor) -> bool:
    in_memory = not (tensor.is_cpu or tensor.is_meta) and tensor.layout is STRIDED
    return in_memory and type(tensor) in PLAIN and tensor.dtype in DTYPES


def _words(tensor: Tensor) -> Tensor:
    values = tensor.detach().resolve_conj().resolve_neg()
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.view(words[values.itemsize]) if values.itemsize in words else values


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
