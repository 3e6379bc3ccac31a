"""Gradients on their way: synchronisation, what comes after it, and the gather of parameters.

1. A bucket group has rows of its gradients before its collective and after it. After a
   reduce-scatter only the own shard is read: the rest of the buffer is stale.
2. The reductions of `finalize_model_grads` are told apart by their functions.
3. Router statistics are read before they are cleared.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from bitstep.adapters.megatron.around import Call, around, phases
from bitstep.adapters.megatron.state import State
from bitstep.observe.engine import Engine

_FINALIZE: Final = (
    "_allreduce_conditional_embedding_grads",
    "_allreduce_non_tensor_model_parallel_grads",
    "_allreduce_word_embedding_grads",
    "_allreduce_position_embedding_grads",
)


class Reduction:
    """Tells the recorder when gradients are reduced and parameters gathered."""

    def __init__(self, engine: Engine, state: State) -> None:
        self._engine = engine
        self._state = state

    def watch_models(self, module: ModuleType) -> None:
        """Follow Megatron's own DistributedDataParallel."""
        model = module.DistributedDataParallel
        around(self._engine, model, "zero_grad_buffer", self._zero)
        around(self._engine, model, "scale_gradients", self._scale)
        phases(self._engine, model, ("start_param_sync",), "gather")

    def watch_buckets(self, module: ModuleType) -> None:
        """Follow the bucket groups."""
        group = module._ParamAndGradBucketGroup
        around(self._engine, group, "start_grad_sync", self._start)
        around(self._engine, group, "finish_grad_sync", self._finish)
        phases(self._engine, group, ("start_param_sync", "finish_param_sync"), "gather")

    def watch_finalize(self, module: ModuleType) -> None:
        """Follow what `finalize_model_grads` does after the buckets."""
        phases(self._engine, module, _FINALIZE, "reduce")
        around(self._engine, module, "_update_router_expert_bias", self._update_bias)

    def _zero(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        self._engine.events.new_work()
        return original(*args, **kwargs)

    def _scale(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        with self._engine.scope.in_phase("scale"):
            result = original(*args, **kwargs)
        self._state.gradients("scale", "scale_gradients", reduced=True)
        return result

    def _start(self, original: Call, group: Any, *args: Any, **kwargs: Any) -> Any:
        if group.grad_reduce_handle is None:
            self._state.gradients("reduce", "before grad_sync", reduced=False, of=group.params)
        with self._engine.scope.in_phase("reduce"):
            return original(group, *args, **kwargs)

    def _finish(self, original: Call, group: Any, *args: Any, **kwargs: Any) -> Any:
        with self._engine.scope.in_phase("reduce"):
            result = original(group, *args, **kwargs)
        self._state.gradients("reduce", "after grad_sync", reduced=True, of=group.params)
        return result

    def _update_bias(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        self._state.buffers("reduce", "before update_router_expert_bias")
        with self._engine.scope.in_phase("reduce"):
            return original(*args, **kwargs)
