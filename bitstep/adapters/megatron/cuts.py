"""The places of parameters and buffers, from Megatron's own `sharded_state_dict`, asked once.

1. Its leaves say key, offset, global shape and replica of local tensors. A factory (gated MLP) says
   it when it is handed a tensor: one without data shows which elements go where.
2. A logical tensor goes by the name of its module with global layer and expert numbers. Where
   Megatron's key says another name (tied embeddings, layers that are fused elsewhere), by the key.
3. Rows of the embedding beyond the vocabulary are padding, and are left out.

No collective is called, nothing is drawn and no tensor is changed by asking.

>>> cuts_of([chunk], vocabulary=50257).parameters[0]  # doctest: +SKIP
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bitstep.adapters.megatron.boxes import clipped
from bitstep.adapters.megatron.layers import paths
from bitstep.errors import FingerprintError, UsageError
from bitstep.observe.names import unwrapped
from bitstep.records import Box


class Cut(NamedTuple):
    """Elements of a local tensor, and where they lie."""

    name: str
    start: int
    end: int
    """Elements of the local tensor, flattened."""
    place: Box | None
    """None: Megatron does not say."""
    main: bool
    """Whether this process counts them where every data-parallel rank has all of them."""
    main_shard: bool
    """Whether it counts those that it owns where each data-parallel rank has some."""


class Buffer(NamedTuple):
    """A buffer, by its owner: a step may put another tensor there."""

    owner: nn.Module
    key: str
    name: str
    main: bool


class Cuts(NamedTuple):
    """What Megatron says about the chunks of a process."""

    parameters: list[tuple[Tensor, list[Cut]]]
    """In the order of the modules."""
    buffers: list[Buffer]


def cuts_of(chunks: Sequence[nn.Module], vocabulary: int | None) -> Cuts:
    """The cuts of every parameter, and every buffer.

    Raises:
        UsageError: the embedding has fewer rows than the vocabulary has tokens.
        FingerprintError: Megatron cannot say where tensors lie.
    """
    found, known = Cuts([], []), set()
    for chunk in chunks:
        said = _said(chunk)
        for module, path in paths(chunk):
            # No chunk of a virtual pipeline is told: a layer is the same in any.
            path = path.rpartition(":")[2]
            for key, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in known:
                    known.add(id(parameter))
                    leaves = said.get(parameter.data_ptr(), ())
                    cuts = _cuts(f"{path}.{key}", parameter, leaves, vocabulary)
                    found.parameters.append((parameter, cuts))
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    leaf = said.get(buffer.data_ptr(), (None,))[0]
                    main = leaf is not None and leaf.main
                    found.buffers.append(Buffer(module, key, f"{path}.{key}", main))
    return found


class _Leaf(NamedTuple):
    """What Megatron says about a local tensor, or about some elements of it."""

    key: str
    start: int
    place: Box
    main: bool
    main_shard: bool
    padded: bool


def _said(chunk: nn.Module) -> dict[int, Sequence[_Leaf]]:
    """Address of a local tensor -> its leaves."""
    inner: Any = unwrapped(chunk)
    # A router that is asked makes its bias float32 at once, and not in its next forward.
    before = [(buffer, buffer.data) for buffer in inner.buffers()]
    try:
        # Layers get numbers in place of an axis that their tensors would be stacked along.
        said = list(_walk(inner.sharded_state_dict(metadata={"non_homogeneous_layers": True})))
    except AssertionError as error:
        # 0.16.1 with multi-token prediction, tied embeddings and several pipeline stages.
        raise FingerprintError(
            "Megatron does not say where tensors lie in this layout: its `sharded_state_dict`"
            " fails, as it does when Megatron saves a distributed checkpoint"
        ) from error
    finally:
        for buffer, data in before:
            if buffer.dtype != data.dtype:
                buffer.data = data
    return {tensor.data_ptr(): leaves for tensor, leaves in said if tensor.numel()}


def _walk(value: Any) -> Iterator[tuple[Tensor, list[_Leaf]]]:
    """Every local tensor that is named, and its leaves."""
    if hasattr(value, "build_fn"):
        yield value.data, _built(value)
    elif hasattr(value, "global_offset") and isinstance(value.data, Tensor):
        yield value.data, [_leaf(value, 0)]
    else:
        for item in _items(value):
            yield from _walk(item)


def _built(factory: Any) -> list[_Leaf]:
    """What a factory makes of its tensor; nothing if a part would be no view of it."""
    data = factory.data
    hollow = torch.empty(data.shape, dtype=data.dtype, device="meta")
    built = factory.build_fn(factory.key, hollow, factory.replica_id, factory.flattened_range)
    shards = list(_shards(built))
    if any(shard.data._base is not hollow or not shard.data.is_contiguous() for shard in shards):
        return []
    leaves = [_leaf(shard, shard.data.storage_offset()) for shard in shards]
    return sorted(leaves, key=lambda leaf: leaf.start)


def _shards(value: Any) -> Iterator[Any]:
    if hasattr(value, "global_offset"):
        yield value
    else:
        for item in _items(value):
            yield from _shards(item)


def _items(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return tuple(value.values())
    return value if isinstance(value, list | tuple) else ()


def _leaf(shard: Any, start: int) -> _Leaf:
    axes = shard.prepend_axis_num
    offsets = tuple(shard.global_offset)
    place = Box(tuple(shard.global_shape[axes:]), offsets[axes:], tuple(shard.local_shape))
    replica = shard.replica_id
    replica = replica if isinstance(replica, tuple) else (replica,)
    # The last one counts data-parallel ranks.
    main_shard = not any(replica[:-1])
    main = main_shard and replica[-1] == 0
    key = numbered(shard.key, offsets[:axes])
    return _Leaf(key, start, place, main, main_shard, bool(shard.allow_shape_mismatch))


def numbered(key: str, indices: Sequence[int]) -> str:
    """A key with the numbers of its layer and expert, which may be axes of the tensor instead.

    >>> numbered("decoder.layers.1.mlp.experts.experts.linear_fc1.weight", (5,))
    'decoder.layers.1.mlp.experts.experts.5.linear_fc1.weight'
    """
    rest, words = list(indices), key.split(".")
    for at in range(len(words) - 1, -1, -1):
        # "mlp.experts.experts.0": the first is the module that holds them.
        following = words[at + 1 : at + 2]
        has_number = following == ["experts"] or "".join(following).isdecimal()
        if rest and words[at] in ("layers", "experts") and not has_number:
            words.insert(at + 1, str(rest.pop()))
    return ".".join([*words, *map(str, rest)])


def _cuts(
    name: str, parameter: Tensor, leaves: Sequence[_Leaf], vocabulary: int | None
) -> list[Cut]:
    """The cuts of one parameter; of one that Megatron says nothing about, all of it, no place."""
    if sum(math.prod(leaf.place.sizes) for leaf in leaves) != parameter.numel():
        return [Cut(name, 0, parameter.numel(), None, False, False)]
    found = []
    for leaf in leaves:
        place: Box | None = leaf.place
        if leaf.padded and vocabulary is not None:
            place = _without_padding(leaf, vocabulary)
        if place is not None:
            own = name if _same(name, leaf.key) else f"{name.partition('.')[0]}.{leaf.key}"
            end = leaf.start + math.prod(place.sizes)
            found.append(Cut(own, leaf.start, end, place, leaf.main, leaf.main_shard))
    return found


def _without_padding(leaf: _Leaf, vocabulary: int) -> Box | None:
    rows = leaf.place.shape[0]
    if vocabulary > rows:
        raise UsageError(
            f"the vocabulary is given as {vocabulary} tokens and {leaf.key} has {rows} rows:"
            " give the number of tokens that the tokenizer has"
        )
    return clipped(leaf.place, vocabulary)


def _same(name: str, key: str) -> bool:
    """Whether the name of a module's parameter and Megatron's key mean the same."""
    local = name.partition(".")[2].replace("experts.local_experts", "experts.experts")
    return _without_numbers(local) == _without_numbers(key)


def _without_numbers(name: str) -> str:
    return re.sub(r"\.\d+(?=\.|$)", "", name)
