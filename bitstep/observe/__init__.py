"""Attach to a live program and say what happened.

1. `record` records what happens inside of it; `start` hooks the whole process; `current` is what
   does so now.
2. `RecordOptions` says what to record, and where.

Importing this package does not load torch; asking for `record` or `start` does.

>>> RecordOptions("runs/a", level="step").level
'step'
"""

from typing import TYPE_CHECKING

from bitstep.observe.options import RecordOptions

if TYPE_CHECKING:
    from bitstep.observe.recorder import Recorder, after_fork, current, record, start

__all__ = ["RecordOptions", "Recorder", "after_fork", "current", "record", "start"]


def __getattr__(name: str) -> object:
    """Load torch only for the names that need it."""
    if name not in ("Recorder", "after_fork", "current", "record", "start"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bitstep.observe import recorder

    value: object = getattr(recorder, name)
    globals()[name] = value
    return value
