"""Pipeline schedules of torch: which microbatch, which stage and which pass is running.

1. Before its first step a schedule runs every stage once to learn shapes. That is no training:
   `asleep` is entered for it, so that it shifts no count and leaves no row.
2. A stage runs one chunk at a time, forward, loss and backward: `chunk` is entered with the
   number of the microbatch. Counting forwards would be wrong, because schedules interleave them.
3. Zero-bubble schedules split backward: the pass is `input-grad` or `weight-grad`.
4. What is sent and received is known by its tensor: `microbatch_of`.

Nothing is imported before the program does, and no schedule is changed.

    Pipelines(asleep, chunk, stage_made).watch(undo, journal.gap)
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Final

from torch import Tensor, nn

from bitstep.observe.dynamo import uncompiled_call
from bitstep.observe.imported import Gap, when_imported
from bitstep.observe.undo import Undo

INPUT_GRAD, WEIGHT_GRAD = "input-grad", "weight-grad"
_STAGE: Final = "torch.distributed.pipelining.stage"
_SCHEDULES: Final = "torch.distributed.pipelining.schedules"
_P2P: Final = ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops")
"""Private names of torch used here: those above; _PipelineStageBase with forward_one_chunk,
backward_one_chunk(full_backward=), backward_weight_one_chunk, submod, stage_index;
_PipelineSchedule with _initialize_pp_stages and _maybe_compute_loss(mb_index=). What is gone is
a sentence for the gaps, and the rest is watched."""

Asleep = Callable[[], AbstractContextManager[None]]
Chunk = Callable[[int, str | None], AbstractContextManager[None]]
StageMade = Callable[[nn.Module, int], None]


class Pipelines:
    """Tells what the schedules of this process do, in the thread that is recorded.

    `asleep()` is entered around the pass that learns shapes, `chunk(microbatch, pass)` around
    each piece of work (pass is None for a whole backward, a forward or a loss), and
    `stage_made(module, index)` is called for each stage that the program makes.
    """

    def __init__(
        self, asleep: Asleep, chunk: Chunk, stage_made: StageMade, is_ours: Callable[[], bool]
    ) -> None:
        self._asleep = asleep
        self._chunk = chunk
        self._stage_made = stage_made
        self._is_ours = is_ours
        self._sent: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def watch(self, undo: Undo, gap: Gap) -> None:
        """Watch stages and schedules from the moment the program imports them."""
        when_imported(_STAGE, lambda module: self._watch_stages(module, undo, gap), undo, gap)
        when_imported(
            _SCHEDULES, lambda module: self._watch_schedules(module, undo, gap), undo, gap
        )

    def microbatch_of(self, tensor: Tensor) -> int:
        """The microbatch that is sent from, or received into, that tensor; -1 if none is."""
        found = self._sent.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else -1

    def _watch_stages(self, module: ModuleType, undo: Undo, gap: Gap) -> None:
        stage = module._PipelineStageBase
        self._around(stage, "forward_one_chunk", self._forward, undo, gap)
        self._around(stage, "backward_one_chunk", self._backward, undo, gap, "full_backward")
        self._around(stage, "backward_weight_one_chunk", self._weights, undo, gap)
        self._around(stage, "__init__", self._made, undo, gap)
        for name in _P2P:
            self._around(stage, name, self._exchange, undo, gap)

    def _watch_schedules(self, module: ModuleType, undo: Undo, gap: Gap) -> None:
        schedule = module._PipelineSchedule
        self._around(schedule, "_initialize_pp_stages", self._learn, undo, gap)
        self._around(schedule, "_maybe_compute_loss", self._loss, undo, gap, "mb_index")

    def _around(
        self, owner: Any, name: str, call: Callable[..., Any], undo: Undo, gap: Gap, needs: str = ""
    ) -> None:
        """Replace a method by `call(original, self, ...)`, if it is the one that is meant."""
        original = getattr(owner, name, None)
        if original is None or needs not in ("", *inspect.signature(original).parameters):
            what = f"no {name}" + (f" with {needs}" if original is not None else "")
            gap(f"pipelines are not told apart by microbatch and pass: this torch has {what}")
            return

        @functools.wraps(original)
        @uncompiled_call
        def around(*args: Any, **kwargs: Any) -> Any:
            if not self._is_ours():
                return original(*args, **kwargs)
            return call(original, *args, **kwargs)

        undo.replace(owner, name, around)

    def _made(self, original: Any, stage: Any, *args: Any, **kwargs: Any) -> None:
        original(stage, *args, **kwargs)
        self._stage_made(stage.submod, stage.stage_index)

    def _learn(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        with self._asleep():
            return original(*args, **kwargs)

    def _forward(self, original: Any, stage: Any, *args: Any, **kwargs: Any) -> Any:
        with self._chunk(_number(args, kwargs), None):
            return original(stage, *args, **kwargs)

    def _backward(self, original: Any, stage: Any, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(stage, *args, **kwargs)
        whole = given.arguments.get("full_backward", True)
        with self._chunk(_number(args, kwargs), None if whole else INPUT_GRAD):
            return original(stage, *args, **kwargs)

    def _weights(self, original: Any, stage: Any, *args: Any, **kwargs: Any) -> Any:
        with self._chunk(_number(args, kwargs), WEIGHT_GRAD):
            return original(stage, *args, **kwargs)

    def _loss(self, original: Any, schedule: Any, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(schedule, *args, **kwargs)
        with self._chunk(given.arguments["mb_index"], None):
            return original(schedule, *args, **kwargs)

    def _exchange(self, original: Any, stage: Any, *args: Any, **kwargs: Any) -> Any:
        operations = original(stage, *args, **kwargs)
        for operation in operations:
            self._note(operation.tensor, _number(args, kwargs))
        return operations

    def _note(self, tensor: Tensor, microbatch: int) -> None:
        key = id(tensor)
        self._sent[key] = weakref.ref(tensor, lambda _: self._sent.pop(key, None)), microbatch


def _number(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The chunk that a method of a stage is called for: its first argument."""
    return int(args[0] if args else next(iter(kwargs.values())))
