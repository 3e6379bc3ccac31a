"""How the processes of one run agree: integer reductions and plain JSON, nothing else.

Integers modulo 2^64 add up to the same bits in any order, so none of this depends on the ring or
tree that the backend picks. JSON travels as bytes in tensors: no object is ever unpickled, not
even one from a live peer. With one process no process group is needed.

>>> Processes(rank=0, world=1).gather({"step": 3})
[{'step': 3}]
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

Json = Any
"""What `json` reads and writes: None, bool, int, float, str, lists and string-keyed dicts."""


@dataclass(frozen=True)
class Processes:
    """The processes of one attempt, seen from one of them."""

    rank: int
    """This process, from 0."""
    world: int
    """How many there are: the W of the layout."""
    local_world: int = 0
    """How many of them share this node; 0 means all."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where the backend wants its tensors."""

    def sum_int64(self, tensor: torch.Tensor) -> None:
        """Add up an int64 tensor over the processes, in place, modulo 2^64."""
        if self.world > 1:
            self._reduce(tensor, dist.ReduceOp.SUM)

    def max_int64(self, tensor: torch.Tensor) -> None:
        """Take the elementwise maximum of an int64 tensor over the processes, in place."""
        if self.world > 1:
            self._reduce(tensor, dist.ReduceOp.MAX)

    def _reduce(self, tensor: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> None:
        assert tensor.dtype == torch.int64, tensor.dtype
        moved = tensor.to(self.device)
        dist.all_reduce(moved, op=operation)
        if moved is not tensor:
            tensor.copy_(moved)

    def gather(self, value: Json) -> list[Json] | None:
        """The value of every process, in order, on process 0; None on the others."""
        everyone = self.exchange(value)
        return everyone if self.rank == 0 else None

    def exchange(self, value: Json) -> list[Json]:
        """The value of every process, in order, on every process."""
        if self.world == 1:
            return [value]
        mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = torch.zeros(self.world, dtype=torch.int64)
        sizes[self.rank] = mine.numel()
        self.sum_int64(sizes)
        padded = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        padded[: mine.numel()] = mine
        padded = padded.to(self.device)
        received = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(received, padded)
        texts = [part[:size].cpu() for part, size in zip(received, sizes.tolist(), strict=True)]
        return [json.loads(text.numpy().tobytes()) for text in texts]

    def broadcast(self, value: Json) -> Json:
        """The value of process 0, on every process."""
        return self.exchange(value if self.rank == 0 else None)[0]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on at least one process; the same answer everywhere."""
        votes = torch.tensor([int(flag)])
        self.max_int64(votes)
        return bool(votes.item())

    def barrier(self) -> None:
        """Wait until every process is here."""
        self.sum_int64(torch.zeros(1, dtype=torch.int64))
