"""Engines that somebody else wrote, each followed from outside and none of them forked.

1. `attach_here` is what the bootstrap calls in a process that is recorded without an edit.
2. `megatron.attach` is the same in a user's own script, for a recorder that runs.

An adapter tells the recorder what the engine knows and no hook of torch shows: phases,
microbatches, where a piece of a tensor lies. It calls nothing that the engine would not have.

>>> attach_here()  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitstep.observe.recorder import Recorder


def attach_here() -> Recorder | None:
    """Start the recorder that the environment asks for, and follow the engines that the program
    imports. What goes wrong is one line on stderr; it is raised if the options are strict."""
    from bitstep.observe import attach

    recorder = attach.attach_here()
    if recorder is not None:
        try:
            from bitstep.adapters import megatron

            megatron.attach(recorder)
        except Exception as error:
            if recorder.options.strict:
                raise
            attach.complain(error)
    return recorder
