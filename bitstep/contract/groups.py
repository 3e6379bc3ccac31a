"""The process groups of this process, for its manifest: who is in them, and how they add.

1. `measure_group` has one group measured by its members, once all of them have come; it is what
   our engine and `follow_groups` call. It never raises: what cannot be measured says why.
2. The first member of a group tells its table to the others, through the store of the job.
3. `process_groups` gives all that this process knows: its own groups, measured or not, and those
   that it was told of. It starts no collective.

    {"0-3": {"name": "default_pg", "ranks": "0-3", "backend": "gloo", "device": "cpu",
             "measured": "yes", "sums": {"all_reduce": {"float32": {"1024": "ring down, ..."}}}}}

Importing this module does not import torch.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from bitstep.contract.groups_store import agree, publish, published
from bitstep.contract.summation import Signature, ranks_text
from bitstep.errors import ContractError

COME: Final = 30.0
"""Seconds in which the members of a new group must come to its measurement. A member without our
hooks never comes."""
TOLD: Final = 2.0
"""Seconds in which the groups that this process is not in must have been told of."""
NOT_ASKED: Final = "only a run with --deterministic adds collectives"

_measured: weakref.WeakKeyDictionary[Any, Signature] = weakref.WeakKeyDictionary()
_elsewhere: set[str] = set()
"""Ranks of the groups that were made here and that this process is not in."""
_times: Counter[str] = Counter()
"""Of each key of the store, how often it was used: a name may come again after a group's end."""


def measure_group(group: Any, seconds: float = COME) -> Signature | None:
    """Measure a group of which this process is a member; all members call it.

    None, and nothing is done, where this process is not a member. Of the rest nothing is raised.
    """
    import torch.distributed as dist

    if group is None or group == dist.GroupMember.NON_GROUP_MEMBER:
        return None
    try:
        signature = _measure(group, seconds)
    except Exception as error:  # whatever a backend says, the program goes on
        words = " ".join(str(error).split())[:200]
        signature = _unmeasured(group, f"{type(error).__name__}: {words}")
    _measured[group] = signature
    _tell(group, signature)
    return signature


def not_here(ranks: Any) -> None:
    """A group of these ranks was made that this process is not in: it will be told of it."""
    _elsewhere.add(ranks_text(tuple(ranks)))


def process_groups(seconds: float = TOLD) -> dict[str, Any]:
    """A table per group, by a name from its ranks; {} where torch.distributed is not in use."""
    dist = getattr(sys.modules.get("torch"), "distributed", None)
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return {}
    own = {table["id"]: table for table in _own()}
    known = [*own.values(), *(table for table in _told(seconds) if table["id"] not in own)]
    named: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    for table in sorted(known, key=lambda table: (table["ranks"], table["made"])):
        # Ranks in no regular order make a long name: the table has them in full.
        name = table["ranks"][:80]
        seen[name] += 1
        again = f"_again{seen[name]}" if seen[name] > 1 else ""
        named[name + again] = {k: v for k, v in table.items() if k not in ("id", "made")}
    return named


def _measure(group: Any, seconds: float) -> Signature:
    import torch.distributed as dist

    from bitstep.contract.summation_measure import measure

    ranks = dist.get_process_group_ranks(group)
    problem = _problem(group)
    if len(ranks) > 1:
        key = f"bitstep/{group.group_name}/{ranks[0]}+{len(ranks)}"
        _times[key] += 1
        problem = agree(_store(), f"{key}/{_times[key]}", len(ranks), problem, seconds)
    return _unmeasured(group, problem) if problem else measure(group)


def _unmeasured(group: Any, problem: str) -> Signature:
    import torch.distributed as dist

    ranks = tuple(dist.get_process_group_ranks(group))
    return Signature(ranks, dist.get_backend(group), "", problem=problem)


def _problem(group: Any) -> str:
    """Why this process will not have the group measured; empty if it will."""
    from bitstep.contract.summation_measure import device_of

    try:
        device_of(group)
    except ContractError as error:
        return str(error)
    return ""


def _store() -> Any:
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def _tell(group: Any, signature: Signature) -> None:
    import torch.distributed as dist

    if dist.get_rank() != signature.ranks[0]:
        return
    # A store that is gone went with the process that writes the manifest.
    with contextlib.suppress(Exception):
        publish(_store(), _table(group, signature, _made().index(group)))


def _told(seconds: float) -> list[dict[str, Any]]:
    if not _measured:
        return []
    try:
        return published(_store(), sorted(_elsewhere), seconds)
    except Exception:  # as above
        return []


def _own() -> Iterator[dict[str, Any]]:
    for made, group in enumerate(_made()):
        signature = _measured.get(group)
        yield _table(group, signature or _unmeasured(group, NOT_ASKED), made)


def _made() -> list[Any]:
    """The groups of this process, in the order of their making."""
    from torch.distributed import distributed_c10d

    world = getattr(distributed_c10d, "_world", None)
    # A number stands there for those that this process is not in.
    known = world.pg_group_ranks if world else {}
    return [group for group in known if isinstance(group, distributed_c10d.ProcessGroup)]


def _table(group: Any, signature: Signature, made: int) -> dict[str, Any]:
    name = str(group.group_desc).replace("undefined", "")
    return {"id": str(group.group_name), "made": made, "name": name, **signature.plain()}
