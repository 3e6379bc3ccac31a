"""FSDP2: the part of each parameter that a process keeps, where a module has the whole ones now.

After an evaluation the outermost modules still have their gathered parameters: no backward comes
that would let go of them. What is trained and saved are the shards.

>>> shards_of([torch.nn.Linear(1, 1)])
{}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn


def shards_of(modules: Iterable[nn.Module]) -> dict[int, Tensor]:
    """Address of a gathered parameter -> the shard."""
    return dict(pair for module in modules for pair in _pairs(module))


def _pairs(module: Any) -> Iterator[tuple[int, Tensor]]:
    # Private names of torch: a version that has others shows what hangs on the module.
    state = getattr(module, "_get_fsdp_state", None)
    for group in () if state is None else getattr(state(), "_fsdp_param_groups", ()):
        for kept in group.fsdp_params:
            gathered = getattr(kept, "_unsharded_param", None)
            shard = getattr(kept, "sharded_param", None)
            if gathered is not None and shard is not None:
                yield id(gathered), shard
