"""What has happened in this process that reads a setting, and what its environment was at start.

1. `passed` says of a moment whether it is over, in words for a person; it imports and starts
   nothing.
2. `at_start` is the environment that the process was started with, whatever it has become.

>>> passed("interpreter start")
'Python has started'
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache

from bitstep.contract.rule import Moment


def passed(moment: Moment) -> str:
    """Why this moment is over, or nothing."""
    if moment == "interpreter start":
        return "Python has started"
    if moment.startswith("import "):
        module = moment.removeprefix("import ")
        return f"{module} is imported" if module in sys.modules else ""
    return {
        "CUDA in use": _cuda,
        "process group": _process_group,
        "first graph": _graph,
    }[moment]()


@cache
def at_start() -> Mapping[str, str]:
    """The environment at the start of this process; what it is now where nothing tells.

    A process that was forked has that of the one which was started.
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            block = file.read()
    except OSError:  # not Linux
        return dict(os.environ)
    pairs = (os.fsdecode(item).partition("=") for item in block.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def _cuda() -> str:
    torch = sys.modules.get("torch")
    is_used = getattr(getattr(torch, "cuda", None), "is_initialized", None)
    return "CUDA is in use" if is_used is not None and is_used() else ""


def _process_group() -> str:
    # Whatever its backend: a later group of NCCL is as late as the first.
    distributed = sys.modules.get("torch.distributed")
    is_made = getattr(distributed, "is_initialized", None)
    return "a process group is made" if is_made is not None and is_made() else ""


def _graph() -> str:
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", {})
    # Not by its key alone: that of a counter appears when it is looked at.
    return (
        "torch.compile has made a graph" if counters.get("stats", {}).get("calls_captured") else ""
    )
