"""Megatron's optimizers: unscale, clip, count, step, copy to the model, gather.

1. Each of them is a phase. The inner optimizer is one of torch and reports by itself.
2. After the inner step the moments and the masters are read, after the copy the parameters: a copy
   that went wrong lies between two rows.
3. The outermost `step` gives back the gradient norm and the number of zeros. It ends the turn even
   where an inf was found and nothing was updated.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from bitstep.adapters.megatron.around import Call, around, phases
from bitstep.adapters.megatron.state import State
from bitstep.observe.engine import Engine

_METRICS: Final = ("updated", "grad_norm", "num_zeros")
"""What `step` gives back, in order."""
_STEPPING: Final = ("MixedPrecisionOptimizer", "FP32Optimizer", "ChainedOptimizer")
_CLIP: Final = ("get_grad_norm_fp32", "clip_grad_by_total_norm_fp32", "count_zeros_fp32")


class Steps:
    """Tells the recorder what the optimizers of this process do."""

    def __init__(self, engine: Engine, state: State) -> None:
        self._engine = engine
        self._state = state

    def watch(self, module: ModuleType) -> None:
        """Follow `megatron.core.optimizer.optimizer`."""
        engine = self._engine
        for kind in ("MegatronOptimizer", "ChainedOptimizer"):
            around(engine, getattr(module, kind), "__init__", self._made)
        for kind in _STEPPING:
            owner = getattr(module, kind)
            around(engine, owner, "step", self._step)
            phases(engine, owner, ("prepare_grads",), "scale")
            phases(engine, owner, ("step_with_ready_grads",), "optimizer")
        phases(engine, module, _CLIP, "clip")
        self._watch_copy(module.Float16OptimizerWithFloat16Params)

    def watch_distributed(self, module: ModuleType) -> None:
        """Follow the distributed optimizer."""
        self._watch_copy(module.DistributedOptimizer)

    def _watch_copy(self, owner: Any) -> None:
        around(self._engine, owner, "_copy_main_params_to_model_params", self._copy)

    def _made(self, original: Call, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self._state.made(optimizer)

    def _copy(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        self._state.moments("optimizer", "inner_step")
        result = original(*args, **kwargs)
        self._state.parameters("optimizer", "copy_main_params_to_model_params")
        return result

    def _step(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        for name, value in zip(_METRICS, result, strict=False):
            if value is not None:
                self._engine.events.metric(
                    name, value, "clip" if name != "updated" else "optimizer"
                )
        self._engine.events.turn_ended()
        return result
