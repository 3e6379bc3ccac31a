"""Were parameters written? What ends a step where no torch optimizer takes one.

1. Version counters tell, and cost nothing: a write under `no_grad` moves them.
2. A write through `.data` or by NumPy does not. As long as no counter has ever moved, the bits of
   all parameters are compared instead.

>>> Written(names, bits).since_last_look()  # doctest: +SKIP
False
"""

from __future__ import annotations

from collections.abc import Callable

from bitstep.observe.names import Names
from bitstep.observe.seen import version_of


class Written:
    """Compares the parameters with what they were when it last looked."""

    def __init__(self, names: Names, bits: Callable[[], int]) -> None:
        self._names = names
        self._bits = bits
        self._versions: tuple[int, ...] = ()
        self._last: tuple[int, ...] = ()
        self._has_versions = False

    def since_last_look(self) -> bool:
        """Whether a parameter was written since."""
        versions, before = versions_of(self._names), self._versions
        self._versions = versions
        if len(before) != len(versions):  # Another root was named: nothing to compare with.
            self._last = ()
            before = versions
        if before != versions:
            self._has_versions = True
            return True
        if self._has_versions:
            return False
        last, self._last = self._last, (self._bits(),)
        return bool(last) and last != self._last


def versions_of(names: Names) -> tuple[int, ...]:
    """The version counter of each parameter: it moves with any write through PyTorch."""
    return tuple(version_of(getattr(it, "_local_tensor", it)) for _, it in names.parameters())
