"""The logical layout and the processes that do its work.

1. The recipe fixes a tree: V leaves (logical data-parallel ranks), summed by `fan_ins`, the
   lowest level first, children in index order.
2. W processes each do V/W leaves. W must be a level boundary, so that the low levels are whole
   subtrees across processes and the high levels whole subtrees over microbatches.
3. Leaf v is microbatch v div W of process v mod W.

>>> Layout(fan_ins=(2, 2, 2), processes=2, process=1, local_processes=2).leaves()
(1, 3, 5, 7)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from bitstep.errors import LayoutError


@dataclass(frozen=True, slots=True)
class Layout:
    """One process's view of the logical layout. LayoutError where the fan-ins do not allow it."""

    fan_ins: tuple[int, ...]
    """Children per node of the tree, the level next to the leaves first."""
    processes: int
    """W, how many processes do the work."""
    process: int
    """Which of them this is, from 0."""
    local_processes: int
    """How many of them are on one node; consecutive ones are."""

    def __post_init__(self) -> None:
        if any(fan_in < 2 for fan_in in self.fan_ins):
            raise LayoutError(
                f"fan-ins {list(self.fan_ins)}: every fan-in must be 2 or more; an empty list "
                "is one leaf"
            )
        if not 0 <= self.process < self.processes:
            raise LayoutError(f"process {self.process} is not one of {self.processes} processes")
        self._require_boundary("processes", self.processes)
        if self.local_processes < self.processes:
            self._require_boundary("processes on a node", self.local_processes)
        elif self.local_processes > self.processes:
            raise LayoutError(
                f"{self.local_processes} processes on a node, of {self.processes} in all"
            )

    def _require_boundary(self, what: str, count: int) -> None:
        allowed = boundaries(self.fan_ins)
        if count not in allowed:
            raise LayoutError(
                f"{count} {what}: the fan-ins {list(self.fan_ins)} allow "
                f"{', '.join(map(str, allowed))}"
            )

    @property
    def logical_ranks(self) -> int:
        """V, the number of leaves."""
        return math.prod(self.fan_ins)

    @property
    def microbatches(self) -> int:
        """V/W, the leaves that this process computes in one step."""
        return self.logical_ranks // self.processes

    @property
    def low(self) -> tuple[int, ...]:
        """Fan-ins of the levels that run across processes; their product is W."""
        return self.fan_ins[: self._levels(self.processes)]

    @property
    def high(self) -> tuple[int, ...]:
        """Fan-ins of the levels that run over a process's microbatches; their product is V/W."""
        return self.fan_ins[self._levels(self.processes) :]

    @property
    def nodes(self) -> int:
        """How many nodes the processes are on."""
        return self.processes // self.local_processes

    @property
    def within_node(self) -> tuple[int, ...]:
        """Fan-ins of the low levels that stay on one node."""
        return self.fan_ins[: self._levels(self.local_processes)]

    @property
    def across_nodes(self) -> tuple[int, ...]:
        """Fan-ins of the low levels that cross nodes; empty on one node."""
        return self.fan_ins[self._levels(self.local_processes) : self._levels(self.processes)]

    def leaves(self) -> tuple[int, ...]:
        """The logical ranks of this process, in microbatch order."""
        return tuple(range(self.process, self.logical_ranks, self.processes))

    def _levels(self, count: int) -> int:
        return boundaries(self.fan_ins).index(count)


def boundaries(fan_ins: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers of processes that the fan-ins allow: 1 and every prefix product."""
    return tuple(accumulate(fan_ins, mul, initial=1))
