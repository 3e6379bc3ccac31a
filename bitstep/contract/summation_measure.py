"""Have a process group add crafted values, and read from the results in which order it did.

1. Each size in turn: a buffer full of probes is all-reduced; one size is reduce-scattered as well,
   and its parts are gathered.
2. An integer maximum over the digests says whether all members got the same bits.
3. Then, without the group, the results are decoded: `summation_runs`.

Collectives, so all members call it at once; nothing of them is recorded and no random number drawn.
Only gloo on CPU has been run.

    signature = measure()          # the default group
    signature.sums[0].words        # ring down, 4 chunks of 64: ((2+3)+1)+0, ... #5f0c9a1b22d4
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from bitstep.contract.summation import Signature, Sums, words_of
from bitstep.contract.summation_decode import Results, probes
from bitstep.contract.summation_runs import LITERAL, filled, rounds_for, runs_of
from bitstep.errors import ContractError

SIZES: Final = (1 << 10, 1 << 16, 1 << 20)
"""Bytes of float32 that are all-reduced. A backend picks its algorithm by size."""
SCATTERED: Final = 1 << 16
"""Bytes that are reduce-scattered."""


def measure(
    group: Any = None, sizes: Sequence[int] = SIZES, scattered: int = SCATTERED
) -> Signature:
    """The signature of a group, the default one if none is given. Every member calls it.

    Args:
        group: a torch.distributed.ProcessGroup of which this process is a member.
        sizes: bytes of float32, each all-reduced.
        scattered: bytes that are reduce-scattered; 0 for none.

    Raises ContractError as `device_of` does, and what torch.distributed raises.
    """
    import torch.distributed as dist
    from torch.utils._python_dispatch import _disable_current_modes

    group = group or dist.group.WORLD
    ranks = tuple(dist.get_process_group_ranks(group))
    device = device_of(group)
    backend = _backends(group)[device.type]
    if len(ranks) == 1:
        return Signature(ranks, backend, device.type)
    asked = [("all_reduce", size // 4) for size in sizes]
    if scattered:
        # Each member keeps one part: they must be of one length.
        asked.append(("reduce_scatter", scattered // 4 // len(ranks) * len(ranks)))
    with _disable_current_modes():
        results = [_added(group, op, elements, device) for op, elements in asked]
        disagree = _disagree(group, results, device)
    sums = [_sums(*of, result, ranks) for of, result in zip(asked, results, strict=True)]
    return Signature(ranks, backend, device.type, tuple(sums), disagree)


def device_of(group: Any) -> Any:
    """Where this group adds: the device of its tensors.

    Raises ContractError for a backend that this was never tried on, and for NCCL before the program
    has chosen the device of this process: its communicator would be bound to another.
    """
    import torch

    backends = _backends(group)
    if backends.get("cuda") == "nccl" and torch.cuda.is_available():
        if group.bound_device_id is not None:
            return group.bound_device_id
        device = torch.cuda.current_device()
        if torch.cuda.device_count() > 1 and str(device) != os.environ.get("LOCAL_RANK"):
            raise ContractError("no device was chosen yet: give init_process_group a device_id")
        return torch.device("cuda", device)
    if backends.get("cpu") == "gloo":
        return torch.device("cpu")
    raise ContractError(f"its backend was never tried: {', '.join(sorted(set(backends.values())))}")


def _backends(group: Any) -> dict[str, str]:
    """cpu: gloo, cuda: nccl."""
    import torch.distributed as dist

    words = dist.get_backend_config(group).split(",")
    return dict(word.split(":") for word in words if word.count(":") == 1)


def _added(group: Any, op: str, elements: int, device: Any) -> Results:
    """[rounds, elements]: what the group makes of buffers of probes."""
    import torch
    import torch.distributed as dist

    world, rank = group.size(), group.rank()
    rows = []
    for values in filled(probes(world, rank), elements, rounds_for(elements, world)):
        buffer = torch.from_numpy(values).to(device)
        if op == "all_reduce":
            dist.all_reduce(buffer, group=group)
        else:
            part = torch.empty(elements // world, dtype=buffer.dtype, device=device)
            dist.reduce_scatter_single(part, buffer, group=group)
            dist.all_gather_single(buffer, part, group=group)
        rows.append(buffer.cpu().numpy())
    return np.stack(rows)


def _disagree(group: Any, results: Sequence[Results], device: Any) -> bool:
    import torch
    import torch.distributed as dist

    digest = hashlib.blake2b(digest_size=7)
    for result in results:
        digest.update(result.data)
    number = int.from_bytes(digest.digest(), "big")
    most = torch.tensor([number, -number], dtype=torch.int64, device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    highest, lowest = most.tolist()
    return bool(highest != -lowest)


def _sums(op: str, elements: int, results: Results, ranks: Sequence[int]) -> Sums:
    runs = runs_of(results, len(ranks), ranks)
    digest = hashlib.blake2b(repr(runs).encode(), digest_size=6)
    if len(ranks) > LITERAL or not runs[-1].order:
        # What the words do not say: who has which rank in the group, and what could not be read.
        digest.update(repr(tuple(ranks)).encode())
        digest.update(b"" if runs[-1].order else results.data)
    words = words_of(runs, digest.hexdigest(), len(ranks))
    return Sums(op, "float32", elements, runs, digest.hexdigest(), words)
