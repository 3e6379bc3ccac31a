"""Follow Megatron Core: its steps, microbatches, phases, metrics, and where its shards lie.

1. Each module of Megatron is changed when the program imports it, and not before.
2. A schedule tells steps and microbatches; gradient synchronisation, clipping and the optimizer
   tell phases; `Megatron` reads the state under logical names and places.
3. Nothing is forked, no collective is added or switched, nothing is drawn.

Without an edit, `bitstep record -- torchrun ... pretrain_gpt.py ...` does all of this. In a script:

    with bitstep.record("runs/a", level="op") as recorder:
        megatron.attach(recorder, vocabulary=50257)
        train()
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from bitstep.observe.imported import when_imported

if TYPE_CHECKING:
    from bitstep.observe.recorder import Recorder


def attach(recorder: Recorder, vocabulary: int | None = None) -> None:
    """Follow what this process does with Megatron, until the recorder detaches.

    Args:
        recorder: attached, as `bitstep.record` gives it.
        vocabulary: tokens of the tokenizer. Megatron pads the rows of its embedding; with it given
            the padding is left out, so that roots do not depend on it.
    """
    engine = recorder.engine()

    def imported(_: ModuleType) -> None:
        from bitstep.adapters.megatron.follow import follow

        follow(engine, vocabulary)

    when_imported("megatron.core", imported, engine.undo, engine.gap)
