"""First values of parameters and buffers, each a function of (seed, its name, its shape).

No order and no layout enters: any process can draw any tensor alone. The generator is NumPy's
Philox, counter-based and the same on every CPU; torch's CPU normal depends on its vector width.

1. Norms and D: ones. Biases: zeros.
2. Convolution: uniform within 1 / sqrt(width). A_log: log 1, log 2, ... by head.
3. dt_bias: the inverse softplus of step sizes drawn log-uniformly from 0.001 to 0.1.
4. Every other matrix: normal with init_std; those that write to the residual stream (`out`,
   `down`) divided by sqrt(2 x blocks).

`initialise("blocks.0.norm.weight", (4,), config, seed=1)` gives four ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bitstep.state.keys import key
from bitstep.train.model.config import ModelConfig

_SHORTEST_STEP, _LONGEST_STEP = 1e-3, 1e-1


def initialise(name: str, shape: Sequence[int], config: ModelConfig, seed: int) -> Tensor:
    """Give the first value of the parameter or buffer `name`: float32 of `shape`, on CPU."""
    generator = np.random.Generator(np.random.Philox(key=key("parameter", seed, name)))
    values = _values(name, tuple(shape), config, generator)
    # A copy: torch aligns to 64 bytes, NumPy to 16, and MKL's bits can follow the alignment.
    return torch.from_numpy(values).to(torch.float32, copy=True)


def _values(
    name: str, shape: tuple[int, ...], config: ModelConfig, generator: np.random.Generator
) -> np.ndarray:
    module, last = ["", *name.split(".")][-2:]
    if last == "D" or module.startswith("norm"):
        return np.ones(shape)
    if last in ("conv_bias", "expert_bias"):
        return np.zeros(shape)
    if last == "conv_weight":
        return generator.uniform(-1, 1, shape) / math.sqrt(shape[1])
    if last == "A_log":
        return np.log(np.arange(1, shape[0] + 1, dtype=np.float64))
    if last == "dt_bias":
        return _step_biases(generator.random(shape))
    assert (last, len(shape)) == ("weight", 2), f"no rule draws {name} of shape {shape}"
    residual = math.sqrt(2 * len(config.pattern)) if module in ("out", "down") else 1.0
    return generator.standard_normal(shape, dtype=np.float32) * np.float32(
        config.init_std / residual
    )


def _step_biases(uniform: np.ndarray) -> np.ndarray:
    """[heads] in [0, 1) -> the values whose softplus is log-uniform between the two limits."""
    low, high = math.log(_SHORTEST_STEP), math.log(_LONGEST_STEP)
    steps = np.exp(low + uniform * (high - low))
    return steps + np.log(-np.expm1(-steps))
