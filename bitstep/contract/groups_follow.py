"""Have every process group measured right after it was made, in a program that knows nothing of it.

1. The functions of torch.distributed that make groups are wrapped, under each name that torch has
   for them: `DeviceMesh` imports them into its own module.
2. What a wrapped call gives back is measured by its members. A call inside another one (a mesh
   that opens the default group, subgroups) is measured where it ends, once.
3. `undo` puts back what it finds still wrapped.

It adds collectives: only for a program whose owner asked for a deterministic run. Every process of
the job must do so; where one does not, its groups are not measured, after a wait of 30 s.

>>> undo = follow_groups()
>>> undo()
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any, Final

from bitstep.contract.groups import measure_group, not_here

MAKERS: Final = ("init_process_group", "new_group", "split_group")
_MODULES: Final = (
    "torch.distributed",
    "torch.distributed.distributed_c10d",
    "torch.distributed.device_mesh",
)
_inside = threading.local()


def follow_groups() -> Callable[[], None]:
    """Measure the groups that are made from now on; gives back how to stop it. Imports torch."""
    import torch.distributed as dist

    if not dist.is_available():
        return lambda: None
    replaced: list[tuple[Any, str, Any, Any]] = []
    for name in MAKERS:
        original = getattr(dist, name)
        wrapped = _following(original)
        for module in map(importlib.import_module, _MODULES):
            if getattr(module, name, None) is original:
                setattr(module, name, wrapped)
                replaced.append((module, name, original, wrapped))

    def undo() -> None:
        for module, name, original, wrapped in replaced:
            if getattr(module, name) is wrapped:
                setattr(module, name, original)

    return undo


def _following(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "maker", False):
            return make(*args, **kwargs)
        _inside.maker = True
        try:
            group = make(*args, **kwargs)
        finally:
            _inside.maker = False
        _follow(make.__name__, group, args, kwargs)
        return group

    return made


def _follow(maker: str, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    import torch.distributed as dist

    if maker == "init_process_group":
        group = dist.group.WORLD
    elif maker == "new_group" and group == dist.GroupMember.NON_GROUP_MEMBER:
        ranks = list(kwargs.get("ranks") or args[0])
        not_here(sorted(ranks) if kwargs.get("sort_ranks", True) else ranks)
    measure_group(group)
