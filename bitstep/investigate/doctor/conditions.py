"""Whether the condition of a catalog row holds for the calls that were recorded.

1. `holds` asks each condition of a row of one kind of call: True, False, or None: a trace holds
   digests, not values, and does not say.
2. Duplicates are certain where there are more indices than places (pigeonholes), and impossible
   for a single index.
3. `applies` joins the kinds of calls of an operation: one that is certain is enough.

>>> few = Call((Tensor("in.0", "float32", (4,)), Tensor("in.1[0]", "int64", (9,))), None)
>>> duplicates(few)
True
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bitstep.contract.catalog import Row
from bitstep.fingerprint.definition import SIZES
from bitstep.investigate.doctor.calls import Call, Tensor

_VECTOR: Final = 64
"""Bytes of the widest vector of a CPU."""
_FEW: Final = 3
"""Rows up to which MKL takes another kernel: facts 4.5, measured for float32."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What holds for the whole program, on the rank where most varies."""

    device: str
    threads: int
    unaligned: bool
    """Whether some parameter does not begin where the allocator of torch begins."""


def applies(row: Row, kinds: Iterable[Call], here: Circumstances) -> bool | None:
    """Whether a row is about one of these calls; None: that cannot be told."""
    found = {holds(row, call, here) for call in kinds}
    return True if True in found else None if None in found else False


def holds(row: Row, call: Call, here: Circumstances) -> bool | None:
    """Whether all conditions of a row hold for a call; None where one cannot be told."""
    found = {_condition(name, call, here) for name in row.only}
    return False if False in found else None if None in found else True


def _condition(name: str, call: Call, here: Circumstances) -> bool | None:
    if name == "more than one thread":
        return here.threads > 1
    if name == "not aligned":
        # Inputs of a call have no address in a trace: only parameters were looked at.
        return None if here.unaligned else False
    if name == "duplicate indices":
        return duplicates(call)
    if name == "accumulate":
        return _accumulates(call)
    if name == "floating point":
        return any(_is_floating(tensor.dtype) for tensor in call.tensors)
    if name == "a few rows":
        rows = [tensor.shape[-2] for tensor in call.given() if len(tensor.shape) > 1]
        return any(1 <= number <= _FEW for number in rows)
    if name == "not whole vectors":
        return any(not _is_whole(tensor, here.threads) for tensor in call.given()[:1])
    return None


def duplicates(call: Call) -> bool | None:
    """Whether an index occurs twice among the integers that a call was given."""
    given = call.given()
    indices = [tensor for tensor in given if tensor.dtype in ("int64", "int32")]
    if not indices or indices[0] is given[0]:
        return None
    numbers = [math.prod(tensor.shape) for tensor in indices]
    if max(numbers) <= 1:
        return False
    # Indexing takes one list of positions a dimension; other operations one for some dimension.
    listed = indices[0].slot.endswith("]")
    dimensions = given[0].shape[: len(indices)] if listed else given[0].shape
    places = math.prod(dimensions) if listed else max(dimensions, default=1)
    in_one_row = listed or len(indices[0].shape) <= 1
    return True if in_one_row and max(numbers) > places else None


def _accumulates(call: Call) -> bool | None:
    """Whether it was called with accumulate=True, by the digest of its arguments."""
    from bitstep.observe.schemas import digest_of_text

    if call.args is None:
        return False
    for value in (True, False):
        for more in ([], [("unsafe", True)], [("unsafe", False)]):
            if call.args == digest_of_text(repr([("accumulate", value), *more])):
                return value
    return None


def _is_floating(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))


def _is_whole(tensor: Tensor, threads: int) -> bool:
    size = SIZES.get(tensor.dtype, 4)
    return math.prod(tensor.shape) * size % (_VECTOR * max(threads, 1)) == 0
