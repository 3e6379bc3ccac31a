"""Schedules of Megatron: where a step begins, and which microbatch runs.

1. A schedule that is called to train begins a step; one that only goes forward evaluates.
2. `forward_step` is told its microbatch. `backward_step` is not: it is that of the forward which
   made the output it starts from.
3. With pipeline stages backward goes past `torch.autograd.backward`, through `custom_backward`,
   from outputs that were freed down to one element that nobody wrote.
"""

from __future__ import annotations

import inspect
import weakref
from contextlib import nullcontext
from types import ModuleType
from typing import Any, Final

from torch import Tensor

from bitstep.adapters.megatron.around import Call, around
from bitstep.adapters.megatron.state import State
from bitstep.observe.engine import Engine

_SCHEDULES: Final = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_with_interleaving",
    "forward_backward_pipelining_without_interleaving",
)


class Schedules:
    """Tells the recorder what the schedules of this process do."""

    def __init__(self, engine: Engine, state: State) -> None:
        self._engine = engine
        self._state = state
        self._running: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        """Address of the output of a forward -> its microbatch, until its backward."""

    def watch(self, module: ModuleType) -> None:
        """Follow `megatron.core.pipeline_parallel.schedules`."""
        for name in _SCHEDULES:
            around(self._engine, module, name, self._schedule)
        around(self._engine, module, "forward_step", self._forward)
        around(self._engine, module, "backward_step", self._backward)
        around(self._engine, module, "custom_backward", self._custom_backward)

    def _schedule(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        chunks = given["model"]
        chunks = chunks if isinstance(chunks, list | tuple) else [chunks]
        training = not given.get("forward_only", False)
        self._state.found(chunks)
        self._engine.events.new_work(training)
        self._running.clear()
        with nullcontext() if training else self._engine.scope.in_phase("eval"):
            return original(*args, **kwargs)

    def _forward(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        number = given.get("current_microbatch")
        if number is None:
            return original(*args, **kwargs)
        # What the program does before it calls the model is no backward of the one before.
        self._engine.scope.set_base("forward")
        with self._engine.events.in_chunk(number, None):
            result = original(*args, **kwargs)
            output = _first(result[0])
            frees = getattr(given["config"], "deallocate_pipeline_outputs", False)
            if frees and output is not None and output.numel() == 1:
                # Before backward, since pipelines free the loss, too, as they do any output.
                self._engine.events.metric("loss", output, "forward")
        if output is not None:
            self._running[id(output)] = weakref.ref(output), number
        return result

    def _backward(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        output = _first(given["output_tensor"])
        found = self._running.pop(id(output), None)
        if found is None or found[0]() is not output:
            return original(*args, **kwargs)
        with self._engine.events.in_chunk(found[1], None):
            result = original(*args, **kwargs)
            self._state.after_backward()
        return result

    def _custom_backward(self, original: Call, output: Any, gradient: Any = None) -> Any:
        self._engine.events.backward_begins(None)
        try:
            return original(output, gradient)
        finally:
            self._engine.events.backward_ended()


def _first(output: Any) -> Tensor | None:
    """The tensor that a forward gives back, alone or first in a list."""
    if isinstance(output, list | tuple):
        output = output[0] if output else None
    return output if isinstance(output, Tensor) else None
