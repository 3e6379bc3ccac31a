"""The training state of Megatron under logical names and places, for the recorder.

1. Chunks are found when a schedule is first called with them, optimizers when they are made.
2. `places` says where each local tensor lies in its logical one; here it becomes items of a source.
3. Generators are those of the process and every stream of Megatron's tracker.

>>> State(engine, vocabulary=None).found([model])  # doctest: +SKIP
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from bitstep.adapters.megatron.layers import chunk_name, layout, paths
from bitstep.adapters.megatron.places import Places
from bitstep.contract.megatron import findings_for_manifest
from bitstep.fingerprint import fingerprint
from bitstep.observe.engine import Engine
from bitstep.observe.names import unwrapped
from bitstep.observe.snapshot import Held
from bitstep.observe.streams import random_states
from bitstep.records import Fingerprint

_RANDOM: Final = "megatron.core.tensor_parallel.random"


class State:
    """What the chunks and the optimizer of this process hold."""

    def __init__(self, engine: Engine, vocabulary: int | None) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._chunks: list[weakref.ref[nn.Module]] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._source: _Source | None = None

    def found(self, chunks: Sequence[nn.Module]) -> None:
        """A schedule is called with these chunks; the first ones are the model."""
        if self._source is not None or self._engine.events.asleep:
            return
        self._engine.events.layout = layout(len(chunks), self._optimizer())
        self._engine.events.findings = _findings(chunks[0])
        for chunk in chunks:
            self._engine.names.adopt(chunk_name(chunk), chunk, paths(chunk))
        try:
            vocabulary = _vocabulary() if self._vocabulary is None else self._vocabulary
            places = Places(chunks, self._optimizer(), vocabulary)
        except Exception as error:
            # The recorder still follows what torch shows.
            self._engine.gap(f"megatron: no logical places: {type(error).__name__}: {error}")
            return
        if missing := places.unplaced:
            few = ", ".join(missing[:3])
            self._engine.gap(f"megatron: {len(missing)} parameters without a place: {few} ...")
        if places.unplaced:
            first, count = places.unplaced[0], len(places.unplaced)
            self._engine.gap(f"megatron: {count} parameters are in no logical root: {first} ...")
        self._source = _Source(places)
        self._engine.use(self._source)

    def made(self, optimizer: Any) -> None:
        """An optimizer was made. One that others are chained in is made after them."""
        self._optimizers.append(weakref.ref(optimizer))

    def _optimizer(self) -> Any:
        alive = [found for made in self._optimizers if (found := made()) is not None]
        return alive[-1] if alive else None

    # -- rows within a step, from level `phase` on ------------------------------------------

    def after_backward(self) -> None:
        """The gradients that a microbatch has left, where no collective is at work on them."""
        if self._source is not None:
            items = self._source.pieces_of_gradients(reduced=False, only_idle=True)
            self._engine.events.within("backward", "", items)

    def gradients(
        self, phase: str, after: str, *, reduced: bool, of: Collection[Tensor] | None = None
    ) -> None:
        """The gradients of these parameters; of all, if none are given."""
        if self._source is not None:
            items = self._source.pieces_of_gradients(reduced=reduced, of=of)
            self._engine.events.within(phase, after, items)

    def parameters(self, phase: str, after: str) -> None:
        """The parameters."""
        if self._source is not None:
            self._engine.events.within(phase, after, self._source.parameters())

    def moments(self, phase: str, after: str) -> None:
        """Moments and masters."""
        if self._source is not None:
            self._engine.events.within(phase, after, self._source.moments())

    def buffers(self, phase: str, after: str) -> None:
        """Router statistics and every other buffer."""
        if self._source is not None:
            self._engine.events.within(phase, after, self._source.buffers())


class _Source:
    """Megatron's state as the recorder reads it."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def parameters(self) -> Held:
        """The pieces of parameters that this process holds."""
        return self._places.parameters()

    def gradients(self) -> Held:
        """The pieces of reduced gradients that are valid here."""
        return self._places.gradients(reduced=True)

    def pieces_of_gradients(
        self, *, reduced: bool, of: Collection[Tensor] | None = None, only_idle: bool = False
    ) -> Held:
        """Gradients before or after their reduction, of some parameters or of all."""
        return self._places.gradients(reduced=reduced, of=of, only_idle=only_idle)

    def moments(self) -> Held:
        """The pieces of moments and masters that this process keeps."""
        return self._places.moments()

    def buffers(self) -> Held:
        """Buffers of every chunk."""
        return self._places.buffers()

    def generators(self) -> dict[str, Fingerprint]:
        """Those of the process, and each stream of Megatron's tracker."""
        states = random_states()
        for name, state in _tracked().items():
            found = state if isinstance(state, Tensor) else state.get_state()
            states[f"tracker:{name}"] = fingerprint(found)
        return states


def _vocabulary() -> int | None:
    """The tokens of the tokenizer that `megatron.training` has, where the program uses it."""
    training = sys.modules.get("megatron.training.global_vars")
    size = getattr(getattr(training, "_GLOBAL_TOKENIZER", None), "vocab_size", None)
    return size if isinstance(size, int) else None


def _findings(chunk: nn.Module) -> list[str]:
    """What the rules say of the arguments, or of the configuration where there are none."""
    ask = partial(
        findings_for_manifest,
        environment=os.environ,
        modules=list(sys.modules),
        cuda_initialized=bool(torch.cuda.is_initialized()),  # type: ignore[no-untyped-call]
    )
    return ask(sys.argv) or ask((), config=getattr(unwrapped(chunk), "config", None))


def _tracked() -> dict[str, Any]:
    """The streams of the tracker, if the program has made one. Asking for one would make it."""
    random = sys.modules.get(_RANDOM)
    tracker = getattr(random, "_CUDA_RNG_STATE_TRACKER", None)
    return dict(tracker.get_states()) if tracker is not None else {}
