"""The names of a chunk's modules: global layer and expert numbers, whatever stage they run on.

Megatron numbers layers and experts from 0 on each pipeline stage and each expert rank. Here
"decoder.layers.0" of the second stage is "decoder.layers.2", and a chunk of a virtual pipeline says
which one it is: "chunk1:GPTModel.decoder.layers.2".

>>> dict(paths(chunk))[chunk]  # doctest: +SKIP
'GPTModel'
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from torch import nn

from bitstep.observe.names import unwrapped


def chunk_name(chunk: nn.Module) -> str:
    """The name of a chunk: its class, and which chunk of a virtual pipeline it is."""
    inner = unwrapped(chunk)
    stage = getattr(inner, "vp_stage", None)
    name = type(inner).__name__
    return name if stage is None else f"chunk{stage}:{name}"


def paths(chunk: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Every module of a chunk under its global name, the chunk first."""
    yield from _below(unwrapped(chunk), chunk_name(chunk), set())


def _below(module: nn.Module, path: str, seen: set[int]) -> Iterator[tuple[nn.Module, str]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    yield module, path
    for name, child in module.named_children():
        number = _number(path.rpartition(".")[2], module, name, child)
        yield from _below(child, f"{path}.{number}", seen)


def _number(holder: str, parent: Any, name: str, child: Any) -> str:
    """The global number of a layer or an expert in place of the local one."""
    if not name.isdecimal():
        return name
    layer = getattr(child, "layer_number", None)
    if isinstance(layer, int):
        return str(layer - 1)
    return str(int(name) + first_expert(len(parent))) if holder == "local_experts" else name


def first_expert(count: int) -> int:
    """The global number of the first of `count` experts that this process has."""
    state: Any = sys.modules["megatron.core.parallel_state"]
    return int(state.get_expert_model_parallel_rank()) * count


_SIZES: Final = {
    "tp": "get_tensor_model_parallel_world_size",
    "pp": "get_pipeline_model_parallel_world_size",
    "cp": "get_context_parallel_world_size",
    "dp": "get_data_parallel_world_size",
    "ep": "get_expert_model_parallel_world_size",
    "etp": "get_expert_tensor_parallel_world_size",
}


def layout(chunks: int, optimizer: Any) -> str:
    """How tensors are cut: "tp 2, pp 1, cp 1, dp 2, ep 1, etp 2, chunks 1, distributed"."""
    state: Any = sys.modules["megatron.core.parallel_state"]
    sizes = [f"{name} {getattr(state, ask)()}" for name, ask in _SIZES.items()]
    leaves = getattr(optimizer, "chained_optimizers", [optimizer])
    cut = any(hasattr(leaf, "model_param_gbuf_map") for leaf in leaves)
    return ", ".join([*sizes, f"chunks {chunks}", *(["distributed"] if cut else [])])
