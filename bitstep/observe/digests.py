"""The digest of any tensor that a program handles, at the smallest cost that is still the bits.

1. A contiguous tensor in host memory goes straight to the kernel.
2. A dense tensor in another order of dimensions (a transposed weight) is read as the contiguous
   tensor that it is a view of: same bytes, no copy. Its dtype says so: "float32[1,0]".
3. Any other layout goes through `fingerprint`, with every mode off, so that nobody records us.
4. On an accelerator the sum stays there as a tensor; the journal reads all of them once a step.
5. `Seen` remembers what was hashed last at an address, and who wrote the storage last.

>>> digest_of(torch.ones(3, 2).t()) == digest_of(torch.ones(3, 2))._replace(dtype="float32[1,0]")
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from bitstep.errors import FingerprintError
from bitstep.fingerprint import cpu, fallback, fingerprint
from bitstep.fingerprint.definition import SIZES
from bitstep.fingerprint.places import whole
from bitstep.records import Flag

_NAMES: Final = {getattr(torch, name): name for name in SIZES if hasattr(torch, name)}
_PLAIN: Final = frozenset((Tensor, torch.nn.Parameter))
_STRIDED: Final = torch.strided
_K, _SEED = cpu.TABLES[1]
_run_sum = cpu.run_sum
_SMALL: Final = 8192
"""Bytes up to which hashing again is cheaper than looking up whether it may be carried."""
# As plain numbers: an enum's operators cost more than a small tensor's digest.
_CARRIED, _SKIPPED = int(Flag.CARRIED), int(Flag.SKIPPED)
_UNINITIALISED, _PARTLY = int(Flag.UNINITIALISED), int(Flag.PARTLY)


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
        if type(tensor) in _PLAIN and tensor.is_cpu and tensor.layout is _STRIDED:
            name = _NAMES.get(tensor.dtype)
            if name is not None and not tensor.is_neg() and not tensor.is_conj():
                shape: tuple[int, ...] = tensor.shape
                if not tensor.is_contiguous():
                    shape, order = _dense(tensor.shape, tensor.stride())
                    if order is None:
                        return _slow(tensor)
                    name += order
                size, address = tensor.nbytes, tensor.data_ptr()
                if address or not size:
                    return Digest(_run_sum(address, size, 0, _K, _SEED), name, shape)
    except RuntimeError:  # A nested tensor has no shape, and one inside of vmap no storage.
        pass
    return _slow(tensor)


def digests_of(tensors: Sequence[Tensor]) -> list[Digest]:
    """The digests of many tensors. One call of the kernel for all that lie whole in host memory:
    a small model has hundreds, and a call from Python costs more than their bits."""
    found: list[Digest | None] = []
    whole: list[int] = []
    addresses: list[int] = []
    sizes: list[int] = []
    for tensor in tensors:
        name = _NAMES.get(tensor.dtype) if type(tensor) in _PLAIN and tensor.is_cpu else None
        if name is not None and (address := _whole_at(tensor)):
            whole.append(len(found))
            addresses.append(address)
            sizes.append(tensor.nbytes)
            found.append(Digest(0, name, tuple(tensor.shape)))
        else:
            found.append(digest_of(tensor))
    sums = np.empty(len(whole), np.uint64)
    cpu.run_sums(np.array(addresses, np.int64), np.array(sizes, np.int64), sums, _K, _SEED)
    for at, total in zip(whole, sums.tolist(), strict=True):
        found[at] = Digest(total, *found[at][1:])  # type: ignore[index]
    return found  # type: ignore[return-value]


def _whole_at(tensor: Tensor) -> int:
    """The address of a tensor whose bytes lie there in order; 0 for any other."""
    if tensor.layout is not torch.strided or tensor.is_nested or not tensor.is_contiguous():
        return 0
    if tensor.is_conj() or tensor.is_neg() or is_wrapped(tensor):
        return 0
    return tensor.data_ptr()


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


def _slow(tensor: Tensor) -> Digest:
    """Every other tensor, with all modes off: the copies that it may need are ours."""
    tensor = unwrapped(tensor)
    shape: tuple[int, ...] = ()
    with _disable_current_modes(), torch.no_grad():
        try:
            shape = () if tensor.is_nested else tuple(tensor.shape)
            if _is_on_accelerator(tensor):
                total = fallback.box_sum(_words(tensor), whole(tensor.shape), 0, 1)
                return Digest(total, _NAMES[tensor.dtype], shape)
            found = fingerprint(tensor)
        except (FingerprintError, RuntimeError, NotImplementedError) as error:
            return Digest(0, f"{_dtype(tensor)}: {type(error).__name__}", shape, _SKIPPED)
    return Digest(found.sum, found.dtype, found.shape)


def _is_on_accelerator(tensor: Tensor) -> bool:
    in_memory = not (tensor.is_cpu or tensor.is_meta) and tensor.layout is _STRIDED
    return in_memory and type(tensor) in _PLAIN and tensor.dtype in _NAMES


def _words(tensor: Tensor) -> Tensor:
    values = tensor.detach().resolve_conj().resolve_neg()
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.view(words[values.itemsize]) if values.itemsize in words else values


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class Access(NamedTuple):
    """A digest, and what is known of the tensor beside its bits."""

    sum: Any
    dtype: str
    shape: tuple[int, ...]
    flags: int
    version: int
    writer: int
    """`seq` of the last recorded write to its storage, or -1."""


class _Last(NamedTuple):
    version: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    base: int
    writer: int
    digest: Digest


class Seen:
    """What was hashed last, by address, and what is known of storages. Cleared every step:
    an address is a name only as long as nobody frees it."""

    def __init__(self, rehash: bool) -> None:
        self._rehash = rehash
        self._last: dict[int, _Last] = {}
        self._writers: dict[int, int] = {}
        self._blank: dict[int, int] = {}

    def clear(self) -> None:
        """Forget every address."""
        self._last.clear()
        self._writers.clear()
        self._blank.clear()

    def read(self, tensor: Tensor) -> Access:
        """The digest of an input, carried if it may be."""
        if type(tensor) not in _PLAIN or tensor.layout is not _STRIDED:
            return Access(*digest_of(tensor), version_of(tensor), -1)
        try:
            address = tensor.data_ptr()
        except RuntimeError:  # Inside of vmap it has no storage.
            return Access(*digest_of(tensor), -1, -1)
        version = -1 if tensor.is_inference() else tensor._version
        offset = int(tensor.storage_offset())
        base = address - offset * tensor.element_size() if offset else address
        writer = self._writers.get(base, -1)
        # Without a recorded writer the memory may be another's by now, filled unseen. Parameters
        # are read twice a step, and hashed twice.
        if self._rehash or writer < 0 or tensor.nbytes <= _SMALL or _is_foreign(tensor):
            total, dtype, shape, flags = digest_of(tensor)
        else:
            total, dtype, shape, flags = self._carried(tensor, address, version, base, writer)
        if base in self._blank:
            flags |= self._blank[base]
        return Access(total, dtype, shape, flags, version, writer)

    def _carried(
        self, tensor: Tensor, address: int, version: int, base: int, writer: int
    ) -> Digest:
        last = self._last.get(address)
        if (
            last is not None
            and last.version == version >= 0
            # Memory that was freed and given out again: other storage, or written since.
            and last.base == base
            and last.writer == writer
            and last.shape == tensor.shape
            and last.stride == tensor.stride()
            and last.dtype is tensor.dtype
        ):
            return last.digest._replace(flags=last.digest.flags | _CARRIED)
        digest = digest_of(tensor)
        self._keep(address, tensor, version, base, writer, digest)
        return digest

    def wrote(self, tensor: Tensor, seq: int) -> Access:
        """The digest of what an op just wrote; row `seq` is its writer."""
        total, dtype, shape, flags = digest = digest_of(tensor)
        version = version_of(tensor)
        if type(tensor) in _PLAIN and tensor.layout is _STRIDED:
            address = tensor.data_ptr()
            offset = int(tensor.storage_offset())
            base = address - offset * tensor.element_size() if offset else address
            self._writers[base] = seq
            if tensor.nbytes > _SMALL:
                self._keep(address, tensor, version, base, seq, digest)
            if base in self._blank:
                self._fill(base, tensor)
        return Access(total, dtype, shape, flags, version, seq)

    def made_blank(self, tensor: Tensor) -> None:
        """An op gave back memory that nobody wrote."""
        if type(tensor) in _PLAIN and (address := tensor.data_ptr()):
            self._last.pop(address, None)
            self._writers.pop(address, None)
            self._blank[address] = _UNINITIALISED

    def is_blank(self, tensor: Tensor) -> bool:
        """Whether nobody wrote the memory of a tensor."""
        if not self._blank or type(tensor) not in _PLAIN or tensor.layout is not _STRIDED:
            return False
        base = tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()
        return self._blank.get(base) == _UNINITIALISED

    def _keep(
        self, address: int, tensor: Tensor, version: int, base: int, writer: int, digest: Digest
    ) -> None:
        self._last[address] = _Last(
            version, tuple(tensor.shape), tensor.stride(), tensor.dtype, base, writer, digest
        )

    def _fill(self, base: int, tensor: Tensor) -> None:
        if tensor.nbytes >= tensor.untyped_storage().nbytes():
            del self._blank[base]
        else:
            self._blank[base] = _PARTLY


def _is_foreign(tensor: Tensor) -> bool:
    """Memory that torch did not allocate, NumPy's for one: it comes and goes unseen, also where a
    tensor was a moment ago."""
    return not tensor.untyped_storage().resizable()


def version_of(tensor: Tensor) -> int:
    """The version counter, or -1 for a tensor that has none."""
    try:
        return tensor._version
    except RuntimeError:  # An inference tensor.
        return -1
