"""Torch's linear and embedding layers, without the draw that their constructors make.

Torch fills new layers from the generator of the process. Ours are filled by name (`initial`), so
that building a model moves no generator; until then their values are whatever the memory held.
"""

from __future__ import annotations

from torch import nn


class Linear(nn.Linear):
    """y = x W^T, no bias: [..., inputs] -> [..., outputs]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        """Draw nothing."""


class Embedding(nn.Embedding):
    """Rows of a table: int64 [...] -> [..., width]."""

    def reset_parameters(self) -> None:
        """Draw nothing."""
