"""Which elements of a parameter this process owns, and what its optimizer keeps for them.

1. With Megatron's distributed optimizer each data-parallel rank owns a range of every bucket of
   gradients, and so a range of the elements of some parameters: `owned`.
2. `kept` finds the master and the moments of each parameter, for all of its elements or those.

>>> owned([chunk])[parameter]  # doctest: +SKIP
(0, 4096)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor, nn

Range = tuple[int, int]
"""First element of a parameter, flattened, and the one after the last."""


class Kept(NamedTuple):
    """What an optimizer keeps for a parameter."""

    parameter: Tensor
    own: Range | None
    """The elements that it is kept for, on one data-parallel rank; None: all of them, on each."""
    counted: bool
    """Not on a further instance of a distributed optimizer, which keeps the same."""
    stepped: Tensor
    """What the inner optimizer steps: the parameter, a view of it, or its float32 master."""
    inner: Any

    def state(self) -> Mapping[str, Any]:
        """As it is now: the first step makes it, and a checkpoint may replace it."""
        found: Mapping[str, Any] = self.inner.state.get(self.stepped, {})
        return found


def owned(chunks: Sequence[nn.Module]) -> dict[Tensor, Range]:
    """The elements that a reduce-scatter leaves here, of every parameter that takes part in one.

    The same arithmetic gives the optimizer its shards. An empty range: nothing of it.
    """
    found: dict[Tensor, Range] = {}
    for chunk in chunks:
        if not getattr(getattr(chunk, "ddp_config", None), "use_distributed_optimizer", False):
            continue
        for buffer in chain(*_buffers(chunk)):
            rank, world = buffer.data_parallel_group.rank(), buffer.data_parallel_group.size()
            for parameter, (start, end, number) in buffer.param_index_map.items():
                bucket = buffer.buckets[number]
                size = bucket.grad_data.numel() // world
                low = bucket.offset + rank * size
                low, high = max(start, low), min(end, low + size)
                found[parameter] = (low - start, high - start) if low < high else (0, 0)
    return found


def is_first_instance(chunks: Sequence[nn.Module]) -> bool:
    """Whether this process belongs to the first instance of a distributed optimizer."""
    groups = (getattr(chunk, "inter_dist_opt_group", None) for chunk in chunks)
    return all(group is None or group.rank() == 0 for group in groups)


def kept(optimizer: Any) -> list[Kept]:
    """What the optimizers of this process keep, chained or not."""
    return list(_kept(optimizer))


def _kept(optimizer: Any) -> Iterator[Kept]:
    # A stub stands where a process has no parameters to train.
    if optimizer is None or getattr(optimizer, "is_stub_optimizer", False):
        return
    if hasattr(optimizer, "chained_optimizers"):
        # The layer-wise one gives each parameter to one data-parallel rank, whole.
        by_layer = hasattr(optimizer, "shard_params")
        for inner in optimizer.chained_optimizers:
            for found in _kept(inner):
                yield found._replace(own=(0, found.parameter.numel())) if by_layer else found
        return
    counted = getattr(optimizer, "distributed_optimizer_instance_id", 0) == 0
    for parameter, stepped, own in _stepped(optimizer):
        yield Kept(parameter, own, counted, stepped, optimizer.optimizer)


def _stepped(optimizer: Any) -> Iterator[tuple[Tensor, Tensor, Range | None]]:
    """Each parameter, what is stepped for it, and the elements that are."""
    if hasattr(optimizer, "shard_fp32_from_float16_groups"):
        for parameter, stepped in _distributed(optimizer):
            found = optimizer._get_model_param_range_map(parameter)["param"]
            yield parameter, stepped, (int(found.start), int(found.end))
    elif hasattr(optimizer, "fp32_from_float16_groups"):
        for parameter, master in _zip(optimizer.float16_groups, optimizer.fp32_from_float16_groups):
            yield parameter, master, None
        for parameter in chain(*optimizer.fp32_from_fp32_groups):
            yield parameter, parameter, None
    else:
        for group in optimizer.optimizer.param_groups:
            for parameter in group["params"]:
                yield parameter, parameter, None


def _distributed(optimizer: Any) -> Iterator[tuple[Tensor, Tensor]]:
    # By these lists and not by the numbers of `model_param_group_index_map`: those count in the
    # order of the buffers, and in a group of two dtypes the inner optimizer has another one.
    views = chain(*optimizer.shard_float16_groups)
    masters = _zip(optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups)
    for (parameter, master), view in zip(masters, views, strict=True):
        # The precision-aware one keeps masters in its state and steps the view.
        yield parameter, view if master is None else master
    yield from _zip(optimizer.model_fp32_groups, optimizer.shard_fp32_groups)


def _zip(groups: Any, others: Any) -> Iterator[tuple[Tensor, Any]]:
    return zip(chain(*groups), chain(*others), strict=True)


def _buffers(chunk: Any) -> tuple[Any, Any]:
    """Buffers of gradients; Megatron hides `nn.Module.buffers` with them."""
    return chunk.buffers, chunk.expert_parallel_buffers
