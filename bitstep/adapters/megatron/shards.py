"""What Megatron's optimizers keep for a parameter: its master, its moments, and of which elements.

1. A distributed optimizer owns a range of the elements of a parameter, or none.
2. One with float32 masters has a tensor of its own for each 16-bit parameter.
3. Any other steps the parameter itself.

>>> Shards(None).range_of(parameter) is None  # doctest: +SKIP
True
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from torch import Tensor

NOTHING: Final = (0, 0)


class Kept(NamedTuple):
    """What is kept for a parameter."""

    own: tuple[int, int] | None
    """The elements of the parameter that it is kept for; None: all of them."""
    main: Tensor
    """What the inner optimizer steps."""
    state: Mapping[str, Any]


class Shards:
    """The optimizers of this process, by parameter."""

    def __init__(self, optimizer: Any) -> None:
        self._leaves = list(_leaves(optimizer))

    def range_of(self, parameter: Tensor) -> tuple[int, int] | None:
        """The elements that a distributed optimizer owns here; None: nobody cuts this parameter."""
        distributed = [leaf for leaf in self._leaves if hasattr(leaf, "model_param_gbuf_map")]
        for leaf in distributed:
            if parameter in leaf.model_param_gbuf_map:
                found = leaf._get_model_param_range_map(parameter)["param"]
                return int(found.start), int(found.end)
        return NOTHING if distributed else None

    def state_of(self, parameter: Tensor) -> Kept | None:
        """What is kept for a parameter here, if anything."""
        for leaf in self._leaves:
            if hasattr(leaf, "model_param_gbuf_map"):
                if parameter not in leaf.model_param_gbuf_map:
                    continue
                group, order = leaf.model_param_group_index_map[parameter]
                main = leaf.optimizer.param_groups[group]["params"][order]
                return Kept(self.range_of(parameter), main, leaf.optimizer.state.get(main, {}))
            main = getattr(parameter, "main_param", None)
            main = parameter if main is None else main
            if any(main is known for known in _stepped(leaf)):
                return Kept(None, main, leaf.optimizer.state.get(main, {}))
        return None


def _leaves(optimizer: Any) -> Iterator[Any]:
    """The optimizers that have an inner one; a stub, on a rank without parameters, has none."""
    if optimizer is None or getattr(optimizer, "is_stub_optimizer", False):
        return
    if hasattr(optimizer, "chained_optimizers"):
        for inner in optimizer.chained_optimizers:
            yield from _leaves(inner)
    else:
        yield optimizer


def _stepped(leaf: Any) -> Iterator[Tensor]:
    for group in leaf.optimizer.param_groups:
        yield from group["params"]
