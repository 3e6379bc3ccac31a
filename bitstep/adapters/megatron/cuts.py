"""The places of parameters and buffers, from Megatron's own `sharded_state_dict`, asked once.

1. Its leaves say key, offset, global shape and replica of local tensors. A factory (gated MLP) is
   built into its leaves. Leaves are matched with parameters by the memory they look at.
2. A logical tensor goes by the name of its module with global layer and expert numbers; one that is
   a copy of another (tied embeddings) by the other's name.
3. Rows of the embedding beyond the vocabulary are padding, and are left out.

No collective is called, nothing is drawn and no tensor is changed by asking.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from bitstep.adapters.megatron.boxes import clipped
from bitstep.adapters.megatron.layers import paths
from bitstep.observe.names import unwrapped
from bitstep.records import Box


class Cut(NamedTuple):
    """Elements of a local tensor, and where they lie."""

    name: str
    start: int
    end: int
    """Elements of the local tensor, flattened."""
    place: Box | None
    main: bool
    """Whether this process counts them where every data-parallel rank has all of them."""
    main_shard: bool
    """Whether it counts those that it owns where each data-parallel rank has some."""


class Leaf(NamedTuple):
    """What Megatron says about a local tensor."""

    key: str
    data: Tensor
    place: Box
    main: bool
    main_shard: bool
    padded: bool


Parameter = tuple[Tensor, list[Cut]]
Buffer = tuple[nn.Module, str, str, Box | None, bool]
"""Owner, key, name, place, main."""


def parameter_cuts(chunks: Sequence[nn.Module], vocabulary: int | None) -> list[Parameter]:
    """The cuts of every parameter, in the order of the modules."""
    found: list[Parameter] = []
    known: set[int] = set()
    for chunk in chunks:
        leaves = list(_leaves(chunk))
        for name, parameter in _named(chunk, "_parameters"):
            if id(parameter) not in known:
                known.add(id(parameter))
                found.append((parameter, _cuts_of(name, parameter, leaves, vocabulary)))
    return found


def buffer_cuts(chunks: Sequence[nn.Module]) -> list[Buffer]:
    """Where each buffer lies. They are looked up by owner when read: a step may replace one."""
    found: list[Buffer] = []
    for chunk in chunks:
        leaves = {leaf.data.data_ptr(): leaf for leaf in _leaves(chunk) if leaf.data.numel()}
        for owner, path in _modules(chunk):
            for key, buffer in owner._buffers.items():
                if buffer is None:
                    continue
                leaf = leaves.get(buffer.data_ptr()) if buffer.numel() else None
                main = leaf is not None and leaf.main
                found.append((owner, key, f"{path}.{key}", leaf and leaf.place, main))
    return found


def _cuts_of(
    name: str, parameter: Tensor, leaves: Sequence[Leaf], vocabulary: int | None
) -> list[Cut]:
    """The cuts of one parameter; of one that Megatron says nothing about, all of it, no place."""
    first, size = parameter.data_ptr(), parameter.element_size()
    found, is_named = [], False
    for leaf in leaves:
        start = (leaf.data.data_ptr() - first) // size
        inside = start >= 0 and start + leaf.data.numel() <= parameter.numel()
        if not inside or not leaf.data.is_contiguous() or leaf.data.dtype != parameter.dtype:
            continue
        is_named = True
        place = leaf.place
        if leaf.padded and vocabulary is not None:
            kept = clipped(place, vocabulary)
            if kept is None:
                continue
            place = kept
        own = name if _same(name, leaf.key) else f"{name.partition('.')[0]}.{leaf.key}"
        end = start + math.prod(place.sizes)
        found.append(Cut(own, start, end, place, leaf.main, leaf.main_shard))
    if not is_named:
        return [Cut(name, 0, parameter.numel(), None, False, False)]
    return sorted(found, key=lambda cut: cut.start)


def _same(name: str, key: str) -> bool:
    """Whether a module's name and Megatron's key mean the same: numbers may be in an axis."""
    local = name.partition(".")[2].replace("experts.local_experts", "experts.experts")
    return _without_numbers(local) == _without_numbers(key)


def _without_numbers(name: str) -> str:
    return re.sub(r"\.\d+(?=\.|$)", "", name)


def _leaves(chunk: nn.Module) -> Iterator[Leaf]:
    """Every tensor that `sharded_state_dict` names."""
    inner: Any = unwrapped(chunk)
    yield from _walk(inner.sharded_state_dict())


def _walk(value: Any) -> Iterator[Leaf]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _walk(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _walk(item)
    elif hasattr(value, "build_fn"):
        yield from _walk(value.build())
    elif hasattr(value, "global_offset") and isinstance(value.data, Tensor):
        yield _leaf(value)


def _leaf(shard: Any) -> Leaf:
    axes = shard.prepend_axis_num
    place = Box(
        tuple(shard.global_shape[axes:]),
        tuple(shard.global_offset[axes:]),
        tuple(shard.local_shape),
    )
    replica = shard.replica_id
    replica = replica if isinstance(replica, tuple) else (replica,)
    # The last one counts data-parallel ranks.
    main_shard = all(number == 0 for number in replica[:-1])
    return Leaf(
        shard.key, shard.data, place, main_shard and replica[-1] == 0, main_shard,
        bool(shard.allow_shape_mismatch),
    )  # fmt: skip


def _modules(chunk: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Modules by logical name: no chunk of a virtual pipeline is told."""
    for module, path in paths(chunk):
        yield module, path.rpartition(":")[2]


def _named(chunk: nn.Module, table: str) -> Iterator[tuple[str, Tensor]]:
    for module, path in _modules(chunk):
        for key, tensor in module.__dict__[table].items():
            if tensor is not None:
                yield f"{path}.{key}", tensor
