"""A list of tensors that lies in memory as the last one at its place did: one call of the kernel.

1. The lists of `_foreach_*` ops hold the same tensors at every step, hundreds of a small model's.
2. `laid_out` looks at each tensor once: what is the same as long as the layouts are is kept.
3. `addresses` says where the tensors of the next list are, or None if they lie otherwise.

No tensor is held.

>>> laid = laid_out([torch.ones(2), torch.ones(3)])
>>> laid.sums(laid.addresses([torch.zeros(2), torch.zeros(3)]))
[0, 0]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from bitstep.fingerprint import cpu
from bitstep.observe.digests import is_bare, is_dense, name_and_shape
from bitstep.observe.layouts import Layouts

FEWEST: Final = 4
"""Tensors of a list; fewer are as fast one by one."""
SMALL: Final = 8192
"""Bytes up to which hashing again is cheaper than looking up whether it may be carried."""
_K, _SEED = cpu.TABLES[1]
_NO_LOOPS: Final = np.empty((0, 2), np.int64)


class Laid(NamedTuple):
    """How the tensors of a list lie in memory."""

    layouts: Layouts
    jobs: npt.NDArray[np.int64]
    """For the kernel: bytes of each, from logical byte 0 on, without loops."""
    sizes: tuple[int, ...]
    """Bytes of each tensor."""
    widths: tuple[int, ...]
    """Bytes of an element of each."""
    large: tuple[int, ...]
    """Positions of those that may be carried."""
    dtypes: tuple[str, ...]
    """As in their digests."""
    shapes: tuple[tuple[int, ...], ...]
    """As in their digests."""

    def addresses(self, tensors: Sequence[Tensor]) -> list[int] | None:
        """Where each tensor begins; None if they lie otherwise, or one has been freed."""
        if len(tensors) != len(self.sizes) or not self.layouts.are_those_of(tensors):
            return None
        addresses = list(map(Tensor.data_ptr, tensors))
        if 0 in addresses and any(s for a, s in zip(addresses, self.sizes, strict=True) if not a):
            return None
        return addresses

    def bases(self, tensors: Sequence[Tensor], addresses: Sequence[int]) -> Sequence[int]:
        """Where the storage of each begins."""
        offsets: list[Any] = list(map(Tensor.storage_offset, tensors))
        if not any(offsets):
            return addresses
        each = zip(addresses, offsets, self.widths, strict=True)
        return [address - offset * width for address, offset, width in each]

    def sums(self, addresses: Sequence[int], without: Iterable[int] = ()) -> list[int]:
        """The sum of each tensor; 0 of those at the positions `without`."""
        jobs = self.jobs
        if without:
            jobs = jobs.copy()
            jobs[list(without), 0] = 0
        sums = np.empty(len(jobs), np.uint64)
        cpu.box_sums(np.array(addresses, np.int64), jobs, _NO_LOOPS, sums, _K, _SEED)
        found: list[int] = sums.tolist()
        return found


def laid_out(tensors: Sequence[Tensor]) -> Laid | None:
    """How these lie; None if one of them has to be looked at by itself each time."""
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or not is_bare(tensor) or tensor.is_inference():
            return None
        if not is_dense(tensor):
            return None
    sizes = tuple(tensor.nbytes for tensor in tensors)
    jobs = np.zeros((len(sizes), 4), np.int64)
    jobs[:, 0] = sizes
    large = tuple(at for at, size in enumerate(sizes) if size > SMALL)
    dtypes, shapes = zip(*map(name_and_shape, tensors), strict=True)
    widths = tuple(tensor.itemsize for tensor in tensors)
    return Laid(Layouts(tensors), jobs, sizes, widths, large, dtypes, shapes)
