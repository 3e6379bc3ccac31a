"""The learning rate of a step, as a fraction of its peak: a pure function of the position.

1. Warm-up: linear, from 1/warmup at position 0 to 1 at position warmup - 1.
2. "cosine": half a cosine from the peak to the floor, over all steps after the warm-up.
   "wsd" (warm-up, stable, decay): the peak, then linear to the floor over the last `decay` steps.
3. The floor is reached at the last step and kept after it.

A position is the number of updates made before: step s of a run is at position s - 1.
math.cos comes from the C library and may differ in the last bit between versions of it: the
manifest must match in its C library ("libc") wherever a recipe says "cosine". "wsd" has no such
term. The learning rate is recorded by its bits in every step.

>>> learning_rate(0, ScheduleConfig(warmup=4), steps=100)
0.25
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from bitstep.errors import RecipeError


class ScheduleConfig(BaseModel):
    """Shape of the learning rate over a run."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Literal["cosine", "wsd"] = "cosine"
    warmup: int = Field(0, ge=0)
    """Steps of warm-up."""
    decay: int = Field(0, ge=0)
    """Steps of the final decay; read by "wsd" only."""
    floor: float = Field(0.1, ge=0.0, le=1.0)
    """Last learning rate, as a fraction of the peak."""


def check_schedule(schedule: ScheduleConfig, steps: int) -> None:
    """RecipeError where the warm-up and the decay do not fit into the steps of the run."""
    decay = schedule.decay if schedule.kind == "wsd" else 0
    if schedule.warmup + decay > steps:
        raise RecipeError(
            f"a schedule of {schedule.warmup} warm-up and {decay} decay steps does not fit into "
            f"{steps} steps: lower them or raise the steps"
        )


def learning_rate(position: int, schedule: ScheduleConfig, steps: int) -> float:
    """Fraction of the peak for the update at `position`, of a run of `steps` updates."""
    if position < schedule.warmup:
        return (position + 1) / schedule.warmup
    wsd = schedule.kind == "wsd"
    decline = schedule.decay if wsd else steps - schedule.warmup
    done = min(position + 1 - (steps - decline), decline)
    if done <= 0:
        return 1.0
    part = done / decline
    left = 1.0 - part if wsd else 0.5 * (1.0 + math.cos(math.pi * part))
    return schedule.floor + (1.0 - schedule.floor) * left
