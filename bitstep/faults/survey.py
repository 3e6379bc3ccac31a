"""Every call of a program, step by step, and its tensors: what a fault can be drawn from.

calls-rank-00000.jsonl holds one or two lines per step: {"step": 1, "calls": [...]}, and of a call

    [phase, module, op, writes, reads]

where writes are [slot, dtype, elements, memory] and reads are memories; a memory is a number that
tensors share while they lie in the same storage. Calls that only view memory write nothing.
tensors-rank-00000.json holds what there is after the second update, with dtype and elements:
{"param:0.weight": ["float32", 1536]}.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from bitstep.faults.calls import Info, reads, written
from bitstep.faults.raw import is_freed, is_plain, local, storage_of


class Survey:
    """Lists the calls of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls: list[Any] = []
        self._memories: dict[int, tuple[int, StorageWeakRef]] = {}
        self._next = 0

    def add(self, phase: str, module: str, info: Info, args: Any, kwargs: Any, result: Any) -> None:
        """One call that has ended."""
        taken = [self._memory(t) for _, t in reads(info, args, kwargs) if is_plain(local(t))]
        writes = [
            [slot, _dtype(t), t.numel(), self._memory(t)]
            for slot, t in written(info, args, kwargs, result)
            if is_plain(local(t))
        ]
        self._calls.append([phase, module, info.op, writes, taken])

    def end(self, rank: int, step: int) -> None:
        """Write the calls of a step that were not yet written."""
        if not self._calls:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"calls-rank-{rank:05d}.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "calls": self._calls}) + "\n")
        self._calls = []
        alive = {k: v for k, v in self._memories.items() if not is_freed(v[1])}
        self._memories = alive

    def name(self, rank: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Write which tensors there are by name."""
        found = {name: [_dtype(t), t.numel()] for name, t in tensors if is_plain(local(t))}
        path = self._folder / f"tensors-rank-{rank:05d}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")

    def _memory(self, tensor: Tensor) -> int:
        address = local(tensor).untyped_storage().data_ptr()
        known = self._memories.get(address)
        if known is None or is_freed(known[1]):
            known = self._next, storage_of(local(tensor))
            self._memories[address] = known
            self._next += 1
        return known[0]


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
