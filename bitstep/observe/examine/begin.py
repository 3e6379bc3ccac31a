"""What the bootstrap calls when NumPy's generators and torch have come. Imports torch only then.

>>> numpy_came(numpy.random)  # doctest: +SKIP
"""

from __future__ import annotations

import functools
import os
from typing import Any

from bitstep.observe.examine.order import read_order

unseeded: list[str] = []
"""Where `numpy.random.default_rng()` was called without a seed."""


def numpy_came(numpy: Any) -> None:
    """Set where NumPy's own generator starts, and every `default_rng()` without a seed."""
    order = read_order(os.environ)
    if order is None:
        return
    entropy = order.entropy
    numpy.seed(entropy)
    made = numpy.default_rng

    @functools.wraps(made)
    def default_rng(seed: Any = None) -> Any:
        if seed is not None:
            return made(seed)
        from bitstep.observe.examine.frames import where

        unseeded.append(where())
        return made([entropy, len(unseeded)])

    numpy.default_rng = default_rng


def torch_came() -> None:
    """Examine this process as its environment asks."""
    order = read_order(os.environ)
    if order is not None:
        from bitstep.observe.examine.process import Process

        Process(order).start()
