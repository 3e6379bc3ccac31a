"""Whether tensors lie in memory as others did: same types, dtypes, sizes, strides and devices.

torch compares all tensors of a list in one call, for which its compiler has a private class; asking
each tensor for its shape and strides takes eight times as long. Where that class is not to be had
the answer is always no, and everything is looked at anew each time.

>>> layouts = Layouts([torch.ones(2, 3)])
>>> layouts.are_those_of([torch.zeros(2, 3)]), layouts.are_those_of([torch.zeros(3, 2)])
(True, False)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Layouts:
    """The layouts of some tensors, without the tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._check: Any = None
        try:
            sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
            guards: Any = torch._C._dynamo.guards
            known = guards.TensorGuards(
                *tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
            )
            # Not of one tensor twice, nor of a kind that it does not know.
            if known.check(*tensors):
                self._check = known.check
        except (AttributeError, TypeError, ValueError, RuntimeError, SystemError):
            pass

    def are_those_of(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these have the same layouts, one by one. No for what is not known."""
        try:
            return self._check is not None and bool(self._check(*tensors))
        except TypeError:  # Another number of tensors.
            return False
