"""The stock way of each thing that the engine does for its bits, put in place for a measurement.

The engine has no switch for any of this. A bench arm is a process of its own, so what is replaced
here is never given back.

    algorithms     PyTorch's default algorithms, in place of the deterministic ones
    reduction      FSDP2's reduce-scatter and a left fold, as many reductions
    norm           the norm of norms in float32, and one float all-reduce
    dispatch       top-k without an order of ties, index_add in place of the sorted gather
    fingerprints   none: no batch, no gradient, no state root, no row
    accumulation   one reduction a step: FSDP2's own no-sync accumulation
    optimizer      fused AdamW
    threads        as many as there are cores for a process

>>> NAMES[:2]
('algorithms', 'norm')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from bitstep.faults import Fault
from bitstep.records import Fingerprint
from bitstep.state.processes import Processes
from bitstep.train import leaf, reduction, step
from bitstep.train.build import Engine
from bitstep.train.layout import Layout
from bitstep.train.model import experts, router

NOTHING = Fingerprint(0, "uint8", (0,))


def _put(module: ModuleType, name: str, stock: object) -> None:
    # A name that the engine no longer has would leave ours in place and measure nothing.
    assert hasattr(module, name), f"{module.__name__} has no {name} to replace"
    setattr(module, name, stock)


def _algorithms() -> None:
    torch.use_deterministic_algorithms(False)


def _norm() -> None:
    def norm(tensors: Sequence[Tensor], processes: Processes) -> float:
        squares = torch.stack(torch._foreach_norm([t for t in tensors if t.numel()])).square().sum()
        if processes.world > 1:
            dist.all_reduce(squares)
        return float(squares.sqrt().item())

    _put(step, "exact_norm", norm)


def _dispatch() -> None:
    def top_k(scores: Tensor, k: int) -> Tensor:
        return scores.topk(k, dim=-1).indices

    def take_rows(x: Tensor, index: Tensor, back: Tensor) -> Tensor:
        return x[index]  # the gradient is added by index

    _put(router, "top_k", top_k)
    _put(experts, "take_rows", take_rows)


def _fingerprints() -> None:
    _put(leaf, "fingerprint", lambda tensor: NOTHING)
    _put(step, "whole_fingerprints", lambda pieces, processes: {})
    _put(step, "state_roots", lambda engine: {"state": 0})
    _put(step, "_randoms", lambda engine: ())


def _accumulation(engine: Engine) -> None:
    run_leaf, take_gradients = leaf.run_leaf, reduction.take_gradients
    last = engine.layout.leaves()[-1]
    reduced = False

    def run(engine: Engine, rank: int) -> leaf.Leaf:
        nonlocal reduced
        reduced = rank == last
        cast(FSDPModule, engine.model).set_requires_gradient_sync(reduced)
        return run_leaf(engine, rank)

    _put(step, "run_leaf", run)
    _put(
        step,
        "take_gradients",
        lambda model, layout: take_gradients(model, layout) if reduced else [],
    )
    _put(step, "Counter", _Last)


class _Last:
    """In place of the counter where FSDP2 has added up the microbatches itself."""

    def __init__(self, layout: Layout, fault: Fault | None) -> None:
        self._gradients: list[Tensor] = []

    def push(self, gradients: list[Tensor]) -> None:
        self._gradients = gradients

    def result(self) -> list[Tensor]:
        return self._gradients


def _optimizer(engine: Engine) -> None:
    engine.optimizer._fused = True


BEFORE_BUILD: dict[str, Callable[[], None]] = {
    "algorithms": _algorithms,
    "norm": _norm,
    "dispatch": _dispatch,
    "fingerprints": _fingerprints,
}
AFTER_BUILD: dict[str, Callable[[Engine], None]] = {
    "accumulation": _accumulation,
    "optimizer": _optimizer,
}
# The other two are asked of the build and of the environment, see `tax_arm`.
NAMES = (*BEFORE_BUILD, *AFTER_BUILD, "reduction", "threads")
