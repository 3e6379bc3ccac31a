"""The streams: everything that can change the next step, listed once.

A stream that is missing here is missing from every checkpoint, every root and every control; a
stream that a checkpoint holds and this list does not is an error there.

    parameters   float32 masters; a bfloat16 copy, where there is one, is cast from them each step
    moments      exp_avg and exp_avg_sq of each parameter
    buffers      every buffer of the model: the router's expert bias
    schedule     position of the learning rate, and the optimizer's count of updates
    random       seed and position of the keyed draws
    data         sequences consumed since the start
    step         optimizer updates since the start, over all attempts

The first three hold tensors, as pieces of logical tensors; the others hold JSON values. Each
position is a stream of its own even where all of them advance together, so that a control can
leave one out and see that it is missed. Imports no torch: a checkpoint is verified without it.

>>> state = TrainingState(pieces=[], values=start_values(seed=7))
>>> state.values["step"]
{'step': 0}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bitstep.records import Box

if TYPE_CHECKING:
    import torch

Json = Any
"""What `json` reads and writes."""

TENSOR_STREAMS = ("parameters", "moments", "buffers")
VALUE_STREAMS = ("schedule", "random", "data", "step")
STREAMS = TENSOR_STREAMS + VALUE_STREAMS


@dataclass(frozen=True)
class Piece:
    """The part of one logical tensor that one process holds, live: a restore writes into it."""

    stream: str
    name: str
    tensor: torch.Tensor
    """The local part; its shape is `place.sizes`, its dtype that of the logical tensor."""
    place: Box
    replicated: bool = False
    """Whether every process holds the same whole tensor, and not a part of its own."""

    @property
    def path(self) -> str:
        """Stream and name: the key of the logical tensor in roots and checkpoints."""
        return f"{self.stream}/{self.name}"

    @property
    def dtype(self) -> str:
        """Name of the dtype, as fingerprints have it: "float32"."""
        return str(self.tensor.dtype).removeprefix("torch.")


def start_values(seed: int) -> dict[str, dict[str, Json]]:
    """The value streams before the first step."""
    return {
        "schedule": {"position": 0, "updates": 0},
        "random": {"seed": seed, "counter": 0},
        "data": {"position": 0},
        "step": {"step": 0},
    }


@dataclass
class TrainingState:
    """All streams of one attempt, live. The pieces are the training's own tensors, not copies."""

    pieces: list[Piece]
    values: dict[str, dict[str, Json]] = field(default_factory=dict)

    def of(self, stream: str) -> list[Piece]:
        """The pieces of one tensor stream, by name."""
        return sorted((p for p in self.pieces if p.stream == stream), key=lambda p: p.name)
