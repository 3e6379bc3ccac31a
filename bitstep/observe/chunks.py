"""The piece of a pipeline schedule that runs: its microbatch comes from the schedule.

A schedule runs forwards and backwards of several microbatches in an order of its own, and goes back
several times for one of them; counting calls would tell another story.

>>> chunk = Chunk(Scope(Columns()))
>>> with chunk.running(3, None):
...     chunk.number
3
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from torch import Tensor

from bitstep.observe.scope import Scope


class Chunk:
    """What of a schedule runs now; `number` is None outside of any."""

    def __init__(self, scope: Scope) -> None:
        self.number: int | None = None
        """The microbatch."""
        self._scope = scope
        self._losses: set[int] = set()
        """Microbatches whose loss has a row."""

    def new_step(self) -> None:
        """No loss of the next step has a row yet."""
        self._losses.clear()

    @contextmanager
    def running(self, number: int, pass_: str | None) -> Iterator[None]:
        """What runs inside is work on that microbatch, and in backward of that pass."""
        before, self.number = (self.number, self._scope.microbatch), number
        self._scope.set_microbatch(number)
        try:
            with self._scope.in_phase("backward", pass_) if pass_ else nullcontext():
                yield
        finally:
            self.number = before[0]
            self._scope.set_microbatch(before[1])

    def counts_loss(self, tensor: Tensor) -> bool:
        """Whether backward is called on a loss: stages go back from what they sent as well, and
        zero-bubble ones twice from a loss."""
        if self.number is None:
            return True
        if tensor.numel() != 1 or self.number in self._losses:
            return False
        self._losses.add(self.number)
        return True
