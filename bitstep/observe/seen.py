"""What was hashed last at an address, and who wrote a storage last: what an input may carry.

1. An input above 8 kB that a recorded op wrote in this step, and nobody since, carries its digest,
   also where it is another view of those bytes: of the same sum, another shape. Hashing a smaller
   one again is cheaper than finding out.
2. Memory that nobody wrote yet is known as such, until an op writes it.
3. Addresses are names only as long as nobody frees them: all is forgotten after each step.

>>> seen = Seen(rehash=False)
>>> seen.wrote(torch.ones(2), seq=7).writer
7
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from bitstep.fingerprint.quantized import QuantizedPart
from bitstep.observe.digests import (
    PLAIN,
    STRIDED,
    Digest,
    Gaps,
    digest_of,
    digest_of_part,
    is_bits,
    lies,
    quantized_parts,
)
from bitstep.observe.lists import SMALL, Laid
from bitstep.records import Flag

# To call a NamedTuple is a call of Python, which takes longer than to hash a small tensor.
_new = tuple.__new__
# As plain numbers: an enum's operators cost more than a small tensor's digest.
_CARRIED, _UNINITIALISED, _PARTLY = (
    int(Flag.CARRIED), int(Flag.UNINITIALISED), int(Flag.PARTLY)
)  # fmt: skip


class Access(NamedTuple):
    """A digest, and what is known of the tensor beside its bits."""

    sum: Any
    dtype: str
    shape: tuple[int, ...]
    flags: int
    version: int
    writer: int
    """`seq` of the last recorded write to its storage, or -1."""


class Accesses(NamedTuple):
    """The same of each tensor of a list; dtypes and shapes are those of its layout."""

    sums: list[int]
    versions: list[int]
    writers: list[int]
    flags: list[int] | None
    """None where there are none."""


_Last = tuple[int, int, Gaps, int, int, Any]
"""Version, bytes, gaps, base, writer and sum of what was hashed: the bytes of any view that begins
there and is as long. A plain tuple, which `native` takes apart."""


class Seen:
    """What was hashed last, by address, and what is known of storages. Cleared every step:
    an address is a name only as long as nobody frees it."""

    def __init__(self, rehash: bool) -> None:
        self.rehash = rehash
        self.sees_all = True
        """Every operation is recorded. Where some are not, memory is freed and written again
        unseen, and nothing may be carried."""
        self.last: dict[int, _Last] = {}
        self.writers: dict[int, int] = {}
        self.blank: dict[int, int] = {}

    def clear(self) -> None:
        """Forget every address."""
        self.last.clear()
        self.writers.clear()
        self.blank.clear()

    def read(self, tensor: Tensor) -> Access:
        """The digest of an input, carried if it may be."""
        if type(tensor) not in PLAIN or tensor.layout is not STRIDED:
            return Access(*digest_of(tensor), version_of(tensor), -1)
        try:
            address = tensor.data_ptr()
        except RuntimeError:  # Inside of vmap it has no storage.
            return Access(*digest_of(tensor), -1, -1)
        try:
            version = tensor._version
        except RuntimeError:  # An inference tensor.
            version = -1
        base = _base(tensor, address)
        writer = self.writers.get(base, -1)
        # Without a recorded writer the memory may be another's by now, filled unseen. Parameters
        # are read twice a step, and hashed twice.
        may_carry = self.sees_all and not self.rehash and writer >= 0
        if may_carry and tensor.nbytes > SMALL and not _is_foreign(tensor):
            total, dtype, shape, flags = self._carried(tensor, address, version, base, writer)
        else:
            total, dtype, shape, flags = digest_of(tensor)
        if base in self.blank:
            flags |= self._blank_flag(tensor, base)
        return _new(Access, (total, dtype, shape, flags, version, writer))

    def _carried(
        self, tensor: Tensor, address: int, version: int, base: int, writer: int
    ) -> Digest:
        # Memory that was freed and given out again: other storage, or written since.
        known = version, tensor.nbytes, base, writer
        last = self.last.get(address)
        if last is not None and version >= 0 and last[:2] + last[3:5] == known and is_bits(tensor):
            dtype, shape, gaps = lies(tensor)
            if gaps == last[2]:
                return _new(Digest, (last[5], dtype, shape, _CARRIED))
        digest = digest_of(tensor)
        self._keep(address, tensor, version, base, writer, digest)
        return digest

    def wrote(self, tensor: Tensor, seq: int) -> Access:
        """The digest of what an op just wrote; row `seq` is its writer."""
        total, dtype, shape, flags = digest = digest_of(tensor)
        version = version_of(tensor)
        if type(tensor) in PLAIN and tensor.layout is STRIDED:
            address = tensor.data_ptr()
            base = _base(tensor, address)
            self.writers[base] = seq
            if tensor.nbytes > SMALL:
                self._keep(address, tensor, version, base, seq, digest)
            if base in self.blank:
                self._fill(base, tensor)
        return _new(Access, (total, dtype, shape, flags, version, seq))

    def read_list(self, tensors: Sequence[Tensor], laid: Laid) -> Accesses | None:
        """`read` of each tensor of a list; None: it does not lie like that."""
        addresses = laid.addresses(tensors)
        if addresses is None:
            return None
        bases = laid.bases(tensors, addresses)
        writers = [self.writers.get(base, -1) for base in bases]
        versions = [tensor._version for tensor in tensors]
        may_carry = self.sees_all and not self.rehash
        alone = [at for at in laid.large if writers[at] >= 0] if may_carry else ()
        sums, flags = laid.sums(addresses, alone), None
        if alone or self._is_any_blank(bases):
            flags = [self._blank_flag(*each) for each in zip(tensors, bases, strict=True)]
            for at in alone:
                sums[at], _, _, flags[at], _, _ = self.read(tensors[at])
        return Accesses(sums, versions, writers, flags)

    def wrote_list(self, tensors: Sequence[Tensor], laid: Laid, seq: int) -> Accesses | None:
        """`wrote` of each tensor of a list; None: it does not lie like that, or fills what nobody
        wrote."""
        addresses = laid.addresses(tensors)
        if addresses is None:
            return None
        bases = laid.bases(tensors, addresses)
        if self._is_any_blank(bases):
            return None
        versions = [tensor._version for tensor in tensors]
        sums = laid.sums(addresses)
        writers = range(seq, seq + len(bases))
        self.writers.update(zip(bases, writers, strict=True))
        for at in laid.large:
            tensor = tensors[at]
            digest = Digest(sums[at], laid.dtypes[at], laid.shapes[at])
            self._keep(addresses[at], tensor, versions[at], bases[at], seq + at, digest)
        return Accesses(sums, versions, [-1] * len(bases), None)

    def read_parts(self, tensor: Tensor) -> list[tuple[str, Access]]:
        """The parts of an input that is quantized, by name; none of any other."""
        return [
            (part.name, _missing(part) if part.tensor is None else self.read(part.tensor))
            for part in quantized_parts(tensor)
        ]

    def wrote_parts(self, tensor: Tensor, seq: int) -> list[tuple[str, Access]]:
        """The parts of what an op just wrote; their rows follow each other from `seq` on."""
        return [
            (part.name, _missing(part) if part.tensor is None else self.wrote(part.tensor, at))
            for at, part in enumerate(quantized_parts(tensor), seq)
        ]

    def made_blank(self, tensor: Tensor) -> None:
        """An op gave back memory that nobody wrote."""
        if type(tensor) in PLAIN and (address := tensor.data_ptr()):
            self.last.pop(address, None)
            self.writers.pop(address, None)
            self.blank[address] = _UNINITIALISED

    def is_blank(self, tensor: Tensor) -> bool:
        """Whether nobody wrote the memory of a tensor."""
        if not self.blank or type(tensor) not in PLAIN or tensor.layout is not STRIDED:
            return False
        return self._blank_flag(tensor, _base(tensor, tensor.data_ptr())) == _UNINITIALISED

    def _blank_flag(self, tensor: Tensor, base: int) -> int:
        """What is known of memory that nobody wrote. NumPy's lies where a tensor was that has been
        freed: our engine draws its weights there."""
        flag = self.blank.get(base, 0)
        return 0 if flag and _is_foreign(tensor) else flag

    def _is_any_blank(self, bases: Sequence[int]) -> bool:
        return bool(self.blank) and not self.blank.keys().isdisjoint(bases)

    def _keep(
        self, address: int, tensor: Tensor, version: int, base: int, writer: int, digest: Digest
    ) -> None:
        if not digest.flags and is_bits(tensor):
            gaps = lies(tensor)[2]
            self.last[address] = version, tensor.nbytes, gaps, base, writer, digest.sum

    def _fill(self, base: int, tensor: Tensor) -> None:
        if tensor.nbytes >= tensor.untyped_storage().nbytes():
            del self.blank[base]
        else:
            self.blank[base] = _PARTLY


def _missing(part: QuantizedPart) -> Access:
    return Access(*digest_of_part(part), -1, -1)


def _base(tensor: Tensor, address: int) -> int:
    """Where the storage of a tensor begins."""
    offset = int(tensor.storage_offset())
    return address - offset * tensor.element_size() if offset else address


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
