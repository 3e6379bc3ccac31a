"""To which module a piece of backward work belongs, without holding a node of the graph.

1. Autograd numbers its nodes in the order in which forward made them. `mark` notes the number
   that comes next whenever the module changes.
2. In backward the number of the node that runs is looked up among the marks: a bisection.
3. A node that accumulates a gradient has no number; it belongs to the root.
4. Private names of torch are used in this one file; `problem` says if they are gone.

Sequence numbers are integers: keeping them keeps no tensor and no graph alive.

>>> attribution = Attribution()
>>> attribution.mark("Net.0", 0)
>>> attribution.owner(torch.autograd._get_sequence_nr())
('Net.0', 0)
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import torch

_FIRST_WITHOUT = 1 << 62
"""Nodes that accumulate have the greatest number of all, far above this."""


def in_backward() -> bool:
    """Whether autograd runs a graph in this thread right now."""
    return bool(task() != -1)


task: Any = getattr(torch._C, "_current_graph_task_id", lambda: -1)
_node: Any = getattr(torch._C, "_current_autograd_node", lambda: None)
_next: Any = getattr(torch.autograd, "_get_sequence_nr", None)


def problem() -> str | None:
    """Why backward work cannot be attributed with this torch, or None."""
    if _next is None or not hasattr(torch._C, "_current_graph_task_id"):
        return "this torch has no sequence numbers: backward work is recorded without its module"
    return None


def node_number() -> int:
    """The sequence number of the node that runs; -1 where none does or it has none."""
    node = _node()
    if node is None:
        return -1
    number = int(node._sequence_nr())
    return number if number < _FIRST_WITHOUT else -1


class Attribution:
    """The marks of one step."""

    def __init__(self) -> None:
        self._from: list[int] = []
        self._owner: list[tuple[str, int]] = []

    def mark(self, module: str, microbatch: int) -> None:
        """What forward does from now on belongs to `module`."""
        if _next is None:
            return
        number = _next()
        if self._from and self._from[-1] == number:
            self._owner[-1] = (module, microbatch)
        else:
            self._from.append(number)
            self._owner.append((module, microbatch))

    def owner(self, number: int) -> tuple[str, int] | None:
        """Module and microbatch of the node with that number; None if nobody marked it."""
        at = bisect_right(self._from, number) - 1
        return self._owner[at] if at >= 0 and number >= 0 else None

    def clear(self) -> None:
        """Forget all marks."""
        self._from.clear()
        self._owner.clear()
