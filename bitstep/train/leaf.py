"""Forward and backward of one logical rank, and what all processes then know of all of them.

A leaf is the microbatch of one logical rank: its tokens, its draws and its gradient depend on the
step and the logical rank alone. Its loss carries 1/V, so that nothing is divided after the sum.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bitstep.fingerprint import fingerprint
from bitstep.records import Fingerprint
from bitstep.train.build import Engine
from bitstep.train.draw import Draw


@dataclass(frozen=True, slots=True)
class Leaf:
    """What one forward and backward left behind, besides gradients."""

    rank: int
    """Logical rank."""
    losses: dict[str, torch.Tensor]
    """float32 scalars by name."""
    batch: Fingerprint
    expert_counts: torch.Tensor
    """int64 [mixture layers, experts]; empty without mixtures."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The leaves of all processes; the same value on each of them."""

    losses: dict[str, tuple[float, ...]]
    """By name, the value of each logical rank."""
    batches: tuple[Fingerprint, ...]
    """Of each logical rank."""
    expert_counts: torch.Tensor
    """int64 [mixture layers, experts], summed over logical ranks."""

    def means(self) -> dict[str, float]:
        """Each loss over all logical ranks: the exact sum, divided and rounded once."""
        return {name: _mean(values) for name, values in self.losses.items()}


def run_leaf(engine: Engine, rank: int) -> Leaf:
    """Forward and backward of one logical rank; the gradients are left in the model."""
    recipe, values = engine.recipe, engine.state.values
    count = recipe.data.sequences
    tokens = engine.training_data.tokens(values["data"]["position"] + rank * count, count)
    random = values["random"]
    draw = Draw(random["seed"], random["counter"], rank)
    outputs = engine.model(tokens.to(engine.processes.device), draw)
    counts = outputs.pop("expert_counts", torch.zeros(0, dtype=torch.int64))
    (outputs["total"] / engine.layout.logical_ranks).backward()
    losses = {name: value.detach() for name, value in outputs.items()}
    return Leaf(rank, losses, fingerprint(tokens), counts)


def share(engine: Engine, leaves: Sequence[Leaf]) -> Shared:
    """One integer all-reduce: each process fills in the rows of its own logical ranks."""
    names = sorted(leaves[0].losses)
    ranks = engine.layout.logical_ranks
    table = torch.zeros(ranks, len(names) + 1, dtype=torch.int64)
    for leaf in leaves:
        losses = torch.stack([leaf.losses[name].float() for name in names]).cpu()
        table[leaf.rank, :-1] = losses.view(torch.int32)
        table[leaf.rank, -1] = _signed(leaf.batch.sum)
    counts = torch.stack([leaf.expert_counts.cpu() for leaf in leaves]).sum(dim=0)
    everything = torch.cat([table.flatten(), counts.flatten()])
    engine.processes.sum_int64(everything)
    table = everything[: table.numel()].view_as(table)
    columns = table[:, :-1].to(torch.int32).view(torch.float32).T.tolist()
    return Shared(
        losses={name: tuple(column) for name, column in zip(names, columns, strict=True)},
        batches=tuple(leaves[0].batch._replace(sum=bits % 2**64) for bits in table[:, -1].tolist()),
        expert_counts=everything[table.numel() :].view_as(counts),
    )


def _mean(values: Sequence[float]) -> float:
    # fsum refuses inf with -inf; a run that has diverged must still be recorded.
    finite = all(math.isfinite(value) for value in values)
    return (math.fsum(values) if finite else sum(values)) / len(values)


def _signed(number: int) -> int:
    return int(struct.unpack("<q", struct.pack("<Q", number))[0])
