"""How an examined process ends: its file, its peers, its children.

>>> rank(), world()
(0, 1)
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist

CHILD_TIMEOUT: Final = 60.0
"""Seconds after which a child with a perturbed stream is given up."""
PEERS_TIMEOUT: Final = 20.0
"""Seconds that a process waits for the others of its group before it ends."""


def write(folder: Path, name: str, said: Mapping[str, Any]) -> None:
    """Leave a file, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.part"
    part.write_text(json.dumps(said))
    part.rename(folder / name)


def end(folder: Path, peers: int) -> None:
    """End this process at once. One that ends early would look like a failure to those that still
    read from it: it waits for the files of all."""
    until = time.monotonic() + PEERS_TIMEOUT
    while len(list(folder.glob("process-*.json"))) < peers and time.monotonic() < until:
        time.sleep(0.05)
    _flush()
    os._exit(0)


def fork() -> bool:
    """Fork a child and wait for its end; true in the child."""
    _flush()
    child = os.fork()
    if not child:
        return True
    until = time.monotonic() + CHILD_TIMEOUT
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.005)
    return False


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def world() -> int:
    """Processes of the group that this one is in."""
    is_group = dist.is_available() and dist.is_initialized()
    return dist.get_world_size() if is_group else 1


def rank() -> int:
    """The rank of this process in it."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0
