"""The loss on held-out text. It reads the parameters and nothing that training reads or writes.

Held-out sequences are shared out over the processes; every process runs equally many forwards,
because each of them gathers parameters, and what is left over is computed and thrown away.
"""

from __future__ import annotations

import math

import torch

from bitstep.train.build import Engine
from bitstep.train.draw import Draw

NO_DRAW = Draw(seed=0, counter=0, rank=0)
"""A model that is not training draws nothing from it."""


def evaluate(engine: Engine) -> float:
    """Mean language-model loss over the held-out sequences of the recipe, as a float64.

    Every sequence is a forward of its own, so that the value does not depend on the processes.
    """
    assert engine.held_out_data is not None
    count, processes = engine.recipe.run.eval_sequences, engine.processes
    losses = torch.zeros(count, dtype=torch.int64)
    engine.model.eval()
    with torch.no_grad():
        for first in range(0, count, processes.world):
            index = first + processes.rank
            tokens = engine.held_out_data.held_out(index % count, 1).to(processes.device)
            loss = engine.model(tokens, NO_DRAW)["loss"].float()
            if index < count:
                losses[index] = loss.cpu().view(torch.int32)
    engine.model.train()
    processes.sum_int64(losses)
    values: list[float] = losses.to(torch.int32).view(torch.float32).tolist()
    return math.fsum(values) / count if all(map(math.isfinite, values)) else math.nan
