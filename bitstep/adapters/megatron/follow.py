"""Which parts of Megatron are followed, each from the moment the program imports it.

>>> follow(recorder.engine(), vocabulary=None)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Final

from bitstep.adapters.megatron.metrics import Metrics
from bitstep.adapters.megatron.optimizers import Steps
from bitstep.adapters.megatron.reduction import Reduction
from bitstep.adapters.megatron.schedules import Schedules
from bitstep.adapters.megatron.state import State
from bitstep.observe.engine import Engine
from bitstep.observe.imported import when_imported

CORE: Final = "megatron.core"


def follow(engine: Engine, vocabulary: int | None) -> None:
    """Follow Megatron in this process."""
    state = State(engine, vocabulary)
    schedules, reduction = Schedules(engine, state), Reduction(engine, state)
    steps, metrics = Steps(engine, state), Metrics(engine)

    def watch_schedules(module: ModuleType) -> None:
        schedules.watch(module)
        metrics.watch_losses(module)

    parts: dict[str, Callable[[ModuleType], None]] = {
        f"{CORE}.pipeline_parallel.schedules": watch_schedules,
        f"{CORE}.distributed.distributed_data_parallel": reduction.watch_models,
        f"{CORE}.distributed.param_and_grad_buffer": reduction.watch_buckets,
        f"{CORE}.distributed.finalize_model_grads": reduction.watch_finalize,
        f"{CORE}.optimizer.optimizer": steps.watch,
        f"{CORE}.optimizer.distrib_optimizer": steps.watch_distributed,
        f"{CORE}.transformer.moe.moe_utils": metrics.watch_experts,
        f"{CORE}.transformer.moe.router": metrics.watch_router,
        f"{CORE}.transformer.multi_token_prediction": metrics.watch_tokens,
        "megatron.training.training": metrics.watch_training,
    }
    for name, watch in parts.items():
        when_imported(name, watch, engine.undo, engine.gap)
