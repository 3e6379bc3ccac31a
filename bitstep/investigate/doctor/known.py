"""Operations that the catalog lacks and that repeat all the same, with the reason.

1. They move bits and compute none, within a rank or between ranks.
2. Their result is the same in any order.
3. They compute each element by itself, by PyTorch's own tag.

>>> why_known("aten.view"), why_known("aten.mm")
('moves bits and computes none', '')
"""

from __future__ import annotations

from typing import Final

_MOVES: Final = frozenset((
    "alias", "as_strided", "cat", "clone", "contiguous", "copy_", "detach", "detach_", "empty",
    "empty_like", "empty_strided", "expand", "fill_", "lift_fresh", "narrow", "new_empty",
    "new_zeros", "ones", "ones_like", "permute", "reshape", "select", "slice", "split", "squeeze",
    "stack", "t", "transpose", "unbind", "unfold", "unsqueeze", "view", "zero_", "zeros",
    "zeros_like", "_unsafe_view", "_reshape_alias", "_to_copy", "_local_scalar_dense", "full",
    "full_like", "new_full", "scalar_tensor", "set_", "resize_", "_foreach_copy_", "_foreach_zero_",
    "constant_pad_nd", "split_with_sizes", "new_ones", "fill", "copy", "slice_backward",
    "select_backward", "arange", "split_with_sizes_copy", "all_gather_copy_in", "chunk_cat",
    "new_empty_strided",
))  # fmt: skip
"""Operations that move bits and compute none: no order of anything can change them."""
_ORDER_FREE: Final = frozenset(("all", "any", "amax", "amin", "count_nonzero", "equal"))
"""Reductions whose result is the same in any order."""
_BETWEEN: Final = ("c10d", "_c10d_functional")
_SENDS: Final = frozenset((
    "allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_",
    "alltoall_", "alltoall_base_", "barrier", "broadcast_", "gather_", "recv_",
    "recv_any_source_", "scatter_", "send", "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced", "all_to_all_single", "broadcast", "wait_tensor",
))  # fmt: skip
"""Collectives that move bits between ranks and add none."""


def why_known(op: str) -> str:
    """Why an operation that the catalog lacks has the same bits each time, or ""."""
    space, _, rest = op.partition("[")[0].partition(".")
    packet = rest.partition(".")[0]
    moves = _SENDS if space in _BETWEEN else _MOVES
    if space in (*_BETWEEN, "aten", "fsdp") and packet in moves:
        return "moves bits and computes none"
    if space == "aten" and packet in _ORDER_FREE:
        return "gives the same in any order"
    if space == "aten" and packet == "random_":
        return "draws integers from its generator, which a seed repeats"
    if space == "aten" and _is_pointwise(packet, rest.partition(".")[2]):
        # Its vectors have tails: with other numbers of threads nobody tried it.
        return "computes each element by itself, by PyTorch's own tag"
    return ""


def _is_pointwise(packet: str, overload: str) -> bool:
    import torch

    found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    return found is not None and torch.Tag.pointwise in found.tags
