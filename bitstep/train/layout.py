"""The logical layout and the processes that do its work.

1. The recipe fixes a tree: V leaves (logical data-parallel ranks), summed by `fan_ins`, the
   lowest level first, children in index order.
2. W processes each do V/W leaves. W must be a level boundary, so that whole subtrees are added
   across processes and whole subtrees over the microbatches of one process.
3. Sharded sums: leaf v is microbatch v div W of process v mod W. The low levels cross processes,
   once a microbatch, and a process adds up its parts of the sums.
4. Whole sums: process v div (V/W) has leaf v. A process adds up its own microbatches whole, and
   the high levels cross processes, once a step. The same tree, the same bits: less traffic, and a
   whole gradient in memory instead of a part of one.

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
    whole_sums: bool = False
    """Whether each process adds up its own microbatches first."""

    def __post_init__(self) -> None:
        if any(fan_in < 2 for fan_in in self.fan_ins):
            raise LayoutError(
                f"fan-ins {list(self.fan_ins)}: every fan-in must be 2 or more; an empty list "
                "is one leaf"
            )
        if not 0 <= self.process < self.processes:
            raise LayoutError(f"process {self.process} is not one of {self.processes} processes")
        self._require("processes", self.processes, boundaries(self.fan_ins, self.whole_sums))
        if self.local_processes < self.processes:
            self._require("processes on a node", self.local_processes, boundaries(self.across))
        elif self.local_processes > self.processes:
            raise LayoutError(
                f"{self.local_processes} processes on a node, of {self.processes} in all"
            )

    def _require(self, what: str, count: int, allowed: tuple[int, ...]) -> None:
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
    def across(self) -> tuple[int, ...]:
        """Fan-ins of the levels that run across processes; their product is W."""
        if self.whole_sums:
            return self.fan_ins[_levels(self.fan_ins, self.microbatches) :]
        return self.fan_ins[: _levels(self.fan_ins, self.processes)]

    @property
    def own(self) -> tuple[int, ...]:
        """Fan-ins of the levels that run over a process's microbatches; their product is V/W."""
        if self.whole_sums:
            return self.fan_ins[: _levels(self.fan_ins, self.microbatches)]
        return self.fan_ins[_levels(self.fan_ins, self.processes) :]

    @property
    def nodes(self) -> int:
        """How many nodes the processes are on."""
        return self.processes // self.local_processes

    @property
    def within_node(self) -> tuple[int, ...]:
        """Fan-ins of the levels across processes that stay on one node."""
        return self.across[: _levels(self.across, self.local_processes)]

    @property
    def across_nodes(self) -> tuple[int, ...]:
        """Fan-ins of the levels that cross nodes; empty on one node."""
        return self.across[_levels(self.across, self.local_processes) :]

    def leaves(self) -> tuple[int, ...]:
        """The logical ranks of this process, in microbatch order."""
        if self.whole_sums:
            first = self.process * self.microbatches
            return tuple(range(first, first + self.microbatches))
        return tuple(range(self.process, self.logical_ranks, self.processes))


def boundaries(fan_ins: tuple[int, ...], whole_sums: bool = False) -> tuple[int, ...]:
    """The numbers of processes that the fan-ins allow: 1 and every product from the leaves up.

    With whole sums every product from the root down.
    """
    return tuple(accumulate(reversed(fan_ins) if whole_sums else fan_ins, mul, initial=1))


def _levels(fan_ins: tuple[int, ...], count: int) -> int:
    """How many levels from the leaves make subtrees of that many leaves."""
    return boundaries(fan_ins).index(count)
