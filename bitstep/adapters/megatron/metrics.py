"""Metrics that Megatron computes: by their bits, on every rank, before and after reduction.

1. What the loss function reports, per microbatch, as this rank has it.
2. Auxiliary losses of experts and of multi-token prediction, per layer when they are saved, and
   once more, reduced, just before Megatron clears them.
3. What `megatron.training` logs, where the program has it.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Final

import torch

from bitstep.adapters.megatron.around import Call, around
from bitstep.observe.engine import Engine

_LOGGED: Final = ("loss_dict", "learning_rate", "loss_scale", "grad_norm", "params_norm",
                  "num_zeros_in_grad", "skipped_iter", "max_attention_logit")  # fmt: skip


class Metrics:
    """Tells the recorder what values Megatron reports."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def watch_experts(self, module: ModuleType) -> None:
        """Follow the tracker of the experts' losses."""

        def clear(original: Call) -> Any:
            for name, entry in module.get_moe_layer_wise_logging_tracker().items():
                self._tell(f"{name} (reduced)", entry["values"], "optimizer")
            return original()

        around(self._engine, module, "save_to_aux_losses_tracker", self._save)
        around(self._engine, module, "clear_aux_losses_tracker", clear)

    def watch_router(self, module: ModuleType) -> None:
        """Follow the router, which has imported the tracker's function by name."""
        around(self._engine, module, "save_to_aux_losses_tracker", self._save)

    def watch_tokens(self, module: ModuleType) -> None:
        """Follow the losses of multi-token prediction."""
        helper = module.MTPLossLoggingHelper

        def save(original: Call, loss: Any, layer_number: Any, *args: Any, **kwargs: Any) -> Any:
            self._tell("mtp loss", loss, "forward", layer_number)
            return original(loss, layer_number, *args, **kwargs)

        def clean(original: Call) -> Any:
            self._tell("mtp loss (reduced)", helper.tracker.get("values"), "optimizer")
            return original()

        around(self._engine, helper, "save_loss_to_tracker", save)
        around(self._engine, helper, "clean_loss_in_tracker", clean)

    def watch_training(self, module: ModuleType) -> None:
        """Follow `megatron.training`: what it logs after each step."""

        def log(original: Call, *args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(original).bind(*args, **kwargs).arguments
            for name in _LOGGED:
                self._tell(name, given.get(name), "optimizer")
            return original(*args, **kwargs)

        around(self._engine, module, "training_log", log)

    def watch_losses(self, module: ModuleType) -> None:
        """Follow the loss function that a schedule calls."""

        def loss(
            original: Call, model: Any, output: Any, func: Any, *args: Any, **kwargs: Any
        ) -> Any:
            return original(model, output, func and self._reporting(func), *args, **kwargs)

        around(self._engine, module, "forward_step_calc_loss", loss)

    def _reporting(self, func: Call) -> Call:
        def call(*args: Any, **kwargs: Any) -> Any:
            outputs = func(*args, **kwargs)
            if isinstance(outputs, tuple):
                self._tell("reported", outputs[-1], "forward")
            return outputs

        return call

    def _save(
        self, original: Call, name: str, loss: Any, layer_number: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self._tell(name, loss, "forward", layer_number)
        return original(name, loss, layer_number, *args, **kwargs)

    def _tell(self, name: str, value: Any, phase: str, layer: int | None = None) -> None:
        """A row for a number or a tensor, or for each of a dictionary."""
        if isinstance(value, dict):
            for key, item in value.items():
                self._tell(str(key), item, phase, layer)
        elif isinstance(value, torch.Tensor | int | float):
            self._engine.events.metric(
                name, value, phase, "" if layer is None else f"layer {layer}"
            )
        elif isinstance(value, list | tuple):
            for at, item in enumerate(value):
                self._tell(f"{name}.{at}", item, phase, layer)
