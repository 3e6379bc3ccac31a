"""The bytes of a tensor in memory, read and written through its address.

Nothing here is dispatched and no version counter moves: neither a mode nor autograd sees it. It
shares no code with the fingerprint, which it is there to check. CPU only.

>>> zeros = torch.zeros(2)
>>> Memory.of(zeros).flip(element=1, bit=31)
('00000000', '00000080')
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


def local(tensor: Tensor) -> Tensor:
    """The plain tensor whose memory it is: the local part of a DTensor."""
    for name in ("_local_tensor", "elem"):
        inner = getattr(tensor, name, None)
        if type(tensor) is not Tensor and isinstance(inner, Tensor):
            return local(inner)
    return tensor


def is_plain(tensor: Tensor) -> bool:
    """Whether its bytes can be reached: dense, on the CPU, not empty."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.numel() > 0
        and tensor.data_ptr() != 0
    )


def storage_of(tensor: Tensor) -> StorageWeakRef:
    """A weak reference to the storage: it keeps neither the tensor nor the memory."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def is_freed(storage: StorageWeakRef) -> bool:
    """Whether the memory of a storage was given back."""
    return bool(storage.expired())  # type: ignore[no-untyped-call]


class Memory(NamedTuple):
    """Where the elements of a tensor lie; it outlives the tensor, and does not keep it."""

    start: int
    """Address of the first element."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """Elements."""
    width: int
    """Bytes of one element."""
    dtype: str
    storage: StorageWeakRef

    @classmethod
    def of(cls, tensor: Tensor) -> Memory:
        """The memory of a tensor. Raises ValueError where it cannot be reached."""
        plain = local(tensor)
        if not is_plain(plain):
            raise ValueError(f"a {type(plain).__name__} on {plain.device} is out of reach")
        dtype = str(plain.dtype).removeprefix("torch.")
        shape, stride, width = tuple(plain.shape), plain.stride(), plain.element_size()
        return cls(plain.data_ptr(), shape, stride, width, dtype, storage_of(plain))

    def address(self, element: int) -> int:
        """Where that element lies, counted in row-major order. IndexError if there is none."""
        if element >= math.prod(self.shape):
            raise IndexError(f"no element {element} in a tensor of shape {self.shape}")
        offset = 0
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            element, place = divmod(element, size)
            offset += place * stride
        return self.start + offset * self.width

    def flip(self, element: int, bit: int) -> tuple[str, str]:
        """Flip one bit; the bytes of the element before and after, in hexadecimal.

        Raises IndexError where there is no such bit, ValueError where the memory is freed.
        """
        if is_freed(self.storage):
            raise ValueError("the tensor is freed by then")
        if bit >= 8 * self.width:
            raise IndexError(f"no bit {bit} in {self.dtype}")
        cell = (ctypes.c_uint8 * self.width).from_address(self.address(element))
        before = bytes(cell).hex()
        cell[bit // 8] ^= 1 << bit % 8
        return before, bytes(cell).hex()


def holds(tensor: Tensor, where: int) -> bool:
    """Whether the byte at that address belongs to an element of the tensor."""
    plain = local(tensor)
    if not is_plain(plain):
        return False
    offset = (where - plain.data_ptr()) // plain.element_size()
    if offset < 0:
        return False
    dims = zip(plain.stride(), plain.shape, strict=True)
    for stride, size in sorted((d for d in dims if d[0] > 0), reverse=True):
        offset -= min(offset // stride, size - 1) * stride
    return offset == 0


def raw_bytes(tensor: Tensor) -> bytes:
    """The bytes of all elements in row-major order; none where they cannot be reached."""
    tensor = local(tensor)
    if not is_plain(tensor):
        return b""
    width = tensor.element_size()
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    extent = (1 + sum((size - 1) * stride for size, stride in pairs)) * width
    memory: Any = (ctypes.c_uint8 * extent).from_address(tensor.data_ptr())
    cells = np.frombuffer(memory, dtype=np.dtype(f"V{width}"))
    strides = [stride * width for stride in tensor.stride()]
    return np.lib.stride_tricks.as_strided(cells, tuple(tensor.shape), strides).tobytes()


def digest(named: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 over names and bytes, as 16 hexadecimal digits."""
    sha = hashlib.sha256()
    for name, tensor in named:
        sha.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        sha.update(raw_bytes(tensor))
    return sha.hexdigest()[:16]
