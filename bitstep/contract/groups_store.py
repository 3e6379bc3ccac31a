"""What the members of a group say to each other, and to rank 0, through the store of the job.

1. `agree`: before a collective that the program did not ask for, each member says that it is there.
   All get one answer: all have come, or one was waited for in vain, or one cannot.
2. `publish` leaves the table of a group for those who are not in it; `published` reads them.

The store is the one by which torch.distributed found its peers: no collective, no data of tensors,
at most MOST entries, JSON only, and no wait without a limit.

>>> store = dist.HashStore()
>>> agree(store, "group", members=1, problem="", seconds=1)
''
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Final

MOST: Final = 4096
"""Groups that are told to others; those after are not."""
MOST_BYTES: Final = 1 << 16
"""A longer table is neither told nor believed."""
_COUNT: Final = "bitstep/groups"
_NOTHING: Final = "nothing"
_LONGEST: Final = 300
_POLL: Final = 0.001
"""Seconds between two looks."""


def agree(store: Any, key: str, members: int, problem: str, seconds: float) -> str:
    """What keeps the members from a collective, the same for all of them; "" where nothing does.

    The last one to come says that nothing does. One that has a `problem` says it, and so does one
    that waits for more than `seconds`. The first to speak has decided: the store sets a key once.
    """
    if problem:
        return _decide(store, key, problem)
    if store.add(f"{key}/here", 1) == members:
        return _decide(store, key, _NOTHING)
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if store.check([f"{key}/answer"]):
            return _understood(store.get(f"{key}/answer"))
        time.sleep(_POLL)
    return _decide(store, key, f"not every member came within {seconds:g} s")


def _decide(store: Any, key: str, answer: str) -> str:
    return _understood(store.compare_set(f"{key}/answer", "", answer))


def _understood(answer: bytes) -> str:
    return answer.decode(errors="replace")[:_LONGEST].removeprefix(_NOTHING)


def publish(store: Any, table: dict[str, Any]) -> None:
    """Tell every process the table of a group that it may not be in."""
    text = json.dumps(table)
    if len(text) <= MOST_BYTES and (number := store.add(_COUNT, 1)) <= MOST:
        store.set(f"{_COUNT}/{number}", text)


def published(store: Any, expected: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """The tables that were told; those of the `expected` ranks are waited for, not for long."""
    limit = time.monotonic() + seconds
    while True:
        tables = _read(store)
        told = {table["ranks"] for table in tables}
        if told.issuperset(expected) or time.monotonic() >= limit:
            return tables
        time.sleep(10 * _POLL)


def _read(store: Any) -> list[dict[str, Any]]:
    keys = [f"{_COUNT}/{number + 1}" for number in range(min(store.add(_COUNT, 0), MOST))]
    # A key that is not there yet would be waited for.
    texts = [store.get(key) for key in keys if store.check([key])]
    tables = [json.loads(text) for text in texts if len(text) <= MOST_BYTES]
    return [table for table in tables if _is_table(table)]


def _is_table(table: Any) -> bool:
    if not isinstance(table, dict) or not isinstance(table.get("made"), int):
        return False
    return isinstance(table.get("ranks"), str) and isinstance(table.get("id"), str)
