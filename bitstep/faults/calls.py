"""What can be said of a call from its schema and its arguments.

>>> info = describe(torch.ops.aten.mul_.Tensor)
>>> info.op, info.writes, info.is_view
('aten.mul_', ('self',), False)
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

OVERWRITES = (
    *("copy_", "fill_", "zero_", "set_", "resize_", "_foreach_copy_", "_foreach_zero_"),
    *("normal_", "uniform_", "bernoulli_", "random_", "exponential_"),
)
"""Operations whose first argument is written whole and not read."""
UNDECLARED = ("c10d.alltoall_base_", "c10d.alltoall_")
"""Collectives that write their first argument and whose schema does not say so."""


@dataclass(frozen=True, slots=True)
class Info:
    """What the schema of an operation says."""

    op: str
    """ "aten.mm"."""
    is_view: bool
    """It gives back memory that it was given, and touches none."""
    is_collective: bool
    writes: tuple[str, ...]
    """Arguments that it writes."""
    arguments: tuple[str, ...]
    """All of them, in order."""
    overwrites: tuple[str, ...]
    """Arguments that it writes and does not read."""


@functools.cache
def describe(func: Any) -> Info:
    """The description of an operation; looked up once."""
    op, schema = str(func.overloadpacket), func._schema
    names = tuple(argument.name for argument in schema.arguments)
    aliases = {a.name: a.alias_info for a in schema.arguments if a.alias_info is not None}
    writes = tuple(name for name, alias in aliases.items() if alias.is_write)
    if op in UNDECLARED:
        writes = names[:1]
    name = op.partition(".")[2]
    overwrites = [a.name for a in schema.arguments if a.is_out]
    overwrites += names[:1] if name in OVERWRITES or op in UNDECLARED else ()
    shares = any(r.alias_info is not None for r in schema.returns)
    return Info(
        op=op,
        is_view=shares and not writes,
        is_collective=op.startswith("c10d.") and not any(w in name for w in ("send", "recv")),
        writes=writes,
        arguments=names,
        overwrites=tuple(overwrites),
    )


def taken(info: Info, args: Any, kwargs: Any) -> list[tuple[str, Tensor]]:
    """The tensors that a call is given: ("in.0", tensor), in lists ("in.0[3]", tensor)."""
    return [(f"in.{slot}", tensor) for _, slot, tensor in _numbered(info, args, kwargs)]


def reads(info: Info, args: Any, kwargs: Any) -> list[tuple[str, Tensor]]:
    """Those of which a call reads the elements. A view reads none, nor does `zeros_like`."""
    if info.is_view or info.op.startswith(("aten.new_", "aten.empty")) or info.op.endswith("_like"):
        return []
    numbered = _numbered(info, args, kwargs)
    return [(f"in.{slot}", t) for name, slot, t in numbered if name not in info.overwrites]


def written(info: Info, args: Any, kwargs: Any, result: Any) -> list[tuple[str, Tensor]]:
    """The tensors that a call has written: results first, then arguments, none twice."""
    mutated = [
        (f"mutated.{slot}", tensor)
        for name, slot, tensor in _numbered(info, args, kwargs)
        if name in info.writes
    ]
    places = {_place(tensor) for _, tensor in mutated}
    results = result if isinstance(result, (list, tuple)) else [result]
    out = [
        (f"out.{slot}", tensor)
        for slot, tensor in _flat("", results)
        if _place(tensor) not in places
    ]
    return ([] if info.is_view else out) + mutated


def _numbered(info: Info, args: Any, kwargs: Any) -> Iterator[tuple[str, str, Tensor]]:
    for number, name in enumerate(info.arguments):
        value = args[number] if number < len(args) else kwargs.get(name)
        for slot, tensor in _flat("", [value]):
            yield name, f"{number}{slot.removeprefix('0')}", tensor


def _flat(prefix: str, values: Any) -> Iterator[tuple[str, Tensor]]:
    for number, value in enumerate(values):
        slot = f"{prefix}[{number}]" if prefix else str(number)
        if isinstance(value, Tensor):
            yield slot, value
        elif isinstance(value, (list, tuple)):
            yield from _flat(slot, value)


def _place(tensor: Tensor) -> tuple[int, Any, Any]:
    return id(tensor), tuple(tensor.shape), tensor.dtype
