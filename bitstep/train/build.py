"""From a recipe to everything that a step needs, on this process.

1. The model is built without memory, in the precision of the recipe, and each unit becomes an
   FSDP2 module.
2. Each process draws every logical parameter whole, keyed by name, and keeps its part: the values
   do not depend on how many processes there are.
3. The tree reduction is put in place of FSDP2's own, and the optimizer is given the local parts.
4. The training state lists all of it as streams.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from bitstep.data.corpus import Corpus
from bitstep.data.loader import Loader, SplitName
from bitstep.faults import Fault
from bitstep.records import Box
from bitstep.state.processes import Processes
from bitstep.state.streams import Piece, TrainingState, start_values
from bitstep.train.layout import Layout
from bitstep.train.model.hybrid import HybridModel
from bitstep.train.model.initial import initialise
from bitstep.train.optimizer import AdamW
from bitstep.train.precision import COMPUTE, quantize
from bitstep.train.recipe import Recipe
from bitstep.train.reduction import TreeReduceScatter, prepare


@dataclass(frozen=True)
class Engine:
    """The live parts of one attempt on one process. `state` aliases the tensors of the others."""

    recipe: Recipe
    layout: Layout
    processes: Processes
    fault: Fault | None
    model: HybridModel
    tree: TreeReduceScatter | None
    optimizer: AdamW
    training_data: Loader
    held_out_data: Loader | None
    state: TrainingState


def build(
    recipe: Recipe, layout: Layout, processes: Processes, corpus: Corpus, fault: Fault | None = None
) -> Engine:
    """Everything before the first step. Raises LayoutError, DataError, UsageError."""
    mesh = init_device_mesh(processes.device.type, (processes.world,))
    seed = recipe.run.seed
    if fault is not None and fault.kind == "wall-clock-seed":
        seed = processes.broadcast(time.time_ns())
    model = _sharded_model(recipe, mesh, seed, fault)
    tree = prepare(model, layout, fault)
    parameters = list(_parameter_pieces(model))
    optimizer = AdamW(
        {piece.name: piece.tensor for piece in parameters},
        recipe.optimizer,
        decayed={name for name, p in model.named_parameters() if p.ndim > 1},
        fused=fault is not None and fault.kind == "fused-adamw",
    )
    state = TrainingState(
        pieces=[*parameters, *_moment_pieces(optimizer, parameters), *_buffer_pieces(model)],
        values=start_values(seed),
    )
    return Engine(
        recipe=recipe,
        layout=layout,
        processes=processes,
        fault=fault,
        model=model,
        tree=tree,
        optimizer=optimizer,
        training_data=_loader(recipe, corpus, "train"),
        held_out_data=_loader(recipe, corpus, "held-out") if recipe.run.eval_every else None,
        state=state,
    )


def _sharded_model(recipe: Recipe, mesh: DeviceMesh, seed: int, fault: Fault | None) -> HybridModel:
    policy = MixedPrecisionPolicy(
        param_dtype=COMPUTE[recipe.run.precision], reduce_dtype=torch.float32
    )
    with torch.device("meta"):
        model = HybridModel(recipe.model, recompute=recipe.run.recompute)
        quantize(model, recipe.run.precision, fault)
    for unit in [*model.units(), model]:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    model.to_empty(device=mesh.device_type)
    _draw(model, recipe, seed)
    return model


@torch.no_grad()
def _draw(model: HybridModel, recipe: Recipe, seed: int) -> None:
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        whole = initialise(name, parameter.shape, recipe.model, seed)
        parameter.to_local().copy_(_cut(whole, _box(parameter)))
    for name, buffer in model.named_buffers():
        buffer.copy_(initialise(name, buffer.shape, recipe.model, seed))


def _cut(whole: torch.Tensor, box: Box) -> torch.Tensor:
    for dim, (offset, size) in enumerate(zip(box.offsets, box.sizes, strict=True)):
        whole = whole.narrow(dim, min(offset, whole.shape[dim]), size)
    return whole


def _box(parameter: DTensor) -> Box:
    sizes, offsets = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return Box(tuple(parameter.shape), tuple(offsets), tuple(sizes))


def _parameter_pieces(model: nn.Module) -> Iterator[Piece]:
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        yield Piece("parameters", name, parameter.to_local().detach(), _box(parameter))


def _moment_pieces(optimizer: AdamW, parameters: list[Piece]) -> Iterator[Piece]:
    for kind, tensors in optimizer.moments().items():
        for piece in parameters:
            yield Piece("moments", f"{kind}/{piece.name}", tensors[piece.name], piece.place)


def _buffer_pieces(model: nn.Module) -> Iterator[Piece]:
    for name, buffer in model.named_buffers():
        shape = tuple(buffer.shape)
        whole = Box(shape, (0,) * len(shape), shape)
        yield Piece("buffers", name, buffer, whole, replicated=True)


def _loader(recipe: Recipe, corpus: Corpus, split: SplitName) -> Loader:
    return Loader(
        corpus,
        split,
        seed=recipe.run.seed,
        sequence=recipe.data.sequence,
        lookahead=recipe.lookahead,
    )
