"""Start the workers of one attempt with torchrun's agent, in this process, and wait for them.

1. The agent is the one that `torchrun --standalone` runs; it is here and not in a child, so that
   the exit status of each worker is known and no second process can be orphaned.
2. A signal to this process asks the workers to stop through a file; the agent never hears of it.
   torchrun itself would end the workers 30 s after a SIGTERM, and die of a SIGUSR1.
3. When a worker ends badly the others cannot go on. gloo peers fail on the closed connection, and
   the agent ends what is left: SIGTERM, then SIGKILL after GRACE seconds.
4. A worker writes its error to the file that the agent gave it; each cause is told once.

>>> run_workers(["train.py"], processes=2)  # doctest: +SKIP
[]
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from bitstep.errors import UsageError
from bitstep.launch import parent
from bitstep.launch.signals import FILE_VARIABLE, StopRequest

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
    from torch.distributed.launcher.api import LaunchConfig

POLL = 0.1
"""Seconds between two looks of the agent at its workers."""
GRACE = 30
"""Seconds that the agent leaves to the others after one worker died; fixed in torch 2.13
(PContext.close is called without a timeout when a worker has failed)."""
SHUTDOWN = 1
"""Seconds that the workers get when this process itself must end (SIGQUIT, a second Ctrl-C)."""

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

_REMEDY = "start with torchrun, which sets all of them, or unset RANK and WORLD_SIZE"


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker that did not exit with 0."""

    rank: int
    exit: int
    """Exit status, or minus the number of the signal that ended it."""
    message: str
    """What the worker said, or an empty string."""
    is_user_error: bool
    """Whether it said so with a BitstepError."""

    @property
    def signal_name(self) -> str:
        """SIGKILL and the like; empty for a worker that exited by itself."""
        return signal.Signals(-self.exit).name if self.exit < 0 else ""


def is_worker() -> bool:
    """Whether torchrun, ours or any, started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def world_of_worker() -> int:
    """How many workers there are. Raises UsageError if their torchrun is not described whole."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise UsageError(f"{name} is not set, but RANK and WORLD_SIZE are: {_REMEDY}")
    values = {}
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        text = os.environ[name]
        if not (text.isascii() and text.isdecimal()):
            raise UsageError(f"{name} is {text!r} and no number: {_REMEDY}")
        values[name] = int(text)
    if values["RANK"] >= values["WORLD_SIZE"]:
        raise UsageError(f"RANK is {values['RANK']} of {values['WORLD_SIZE']}: {_REMEDY}")
    return values["WORLD_SIZE"]


def is_supervised() -> bool:
    """Whether this process is a worker that `run_workers` started."""
    return FILE_VARIABLE in os.environ and ERROR_FILE in os.environ


def write_error(message: str, is_user_error: bool) -> None:
    """Leave the reason of this worker's end where the agent looks for it, in torch's format."""
    path = os.environ.get(ERROR_FILE)
    if not path:
        return
    extra = {"timestamp": str(int(time.time())), "is_user_error": is_user_error}
    Path(path).write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))


def abandon(status: int) -> NoReturn:
    """End this worker now: it waits for no peer and tears nothing down.

    gloo aborts now and then while its group or the interpreter is torn down, after all work is
    done: in 2 of 2 runs with destroy_process_group alone, in 0 of 8 that ended like this.
    """
    for stream in (sys.stdout, sys.stderr):
        # Its reader may be gone, or the stream never have been there.
        with contextlib.suppress(OSError, AttributeError):
            stream.flush()
    os._exit(status)


def run_workers(
    words: Sequence[str], processes: int, stop: StopRequest | None = None
) -> list[Failure]:
    """Run `python WORDS` in that many processes of this node; the failures, likely cause first.

    Args:
        words: what follows the interpreter, "-m" included where a module is meant.
        processes: how many workers.
        stop: who is asked to stop asks the workers to stop.

    Call it from the main thread: the workers end with the thread that started them.
    """
    with tempfile.TemporaryDirectory(prefix="bitstep-") as folder:
        file = Path(folder) / "stop"
        if stop is not None:
            stop.pass_to(file)
        with _environment({**parent.child_environment(), FILE_VARIABLE: str(file)}):
            return _launch(words, processes, Path(folder))


@contextmanager
def _environment(added: dict[str, str]) -> Iterator[None]:
    # The agent copies os.environ into its workers, and has no other way in.
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _launch(words: Sequence[str], processes: int, folder: Path) -> list[Failure]:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    _quieten_agent()
    try:
        python, *safely = parent.interpreter()
        elastic_launch(_configuration(processes, folder), python)(*safely, *words)
    except ChildFailedError as failed:
        found = [_failure(rank, child) for rank, child in failed.failures.items()]
        return sorted(found, key=_likeliness)
    return []


def _configuration(processes: int, folder: Path) -> LaunchConfig:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=str(uuid.uuid4()),
        # The agent unpickles what its meeting point holds. By default that is a port which every
        # network of this machine can reach; here it is a file in a folder of our own.
        rdzv_backend="c10d",
        rdzv_configs={"store_type": "file"},
        rdzv_endpoint=str(folder / "rendezvous"),
        # Without it the agent tells the workers this machine's full name, which laptops and
        # containers often cannot resolve.
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=POLL,
        # Not SIGTERM and SIGINT, which are ours; not SIGHUP, so that nohup works.
        signals_to_handle="SIGQUIT",
        # Else the agent leaves a folder in /tmp at every start.
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "agent")),
        shutdown_timeout=SHUTDOWN,
    )


def _quieten_agent() -> None:
    # It reports a failed worker with a traceback of its own; we tell the cause in one line.
    agent = logging.getLogger("torch.distributed.elastic")
    if not logging.getLogger("bitstep").isEnabledFor(logging.DEBUG):
        agent.addHandler(logging.NullHandler())
        agent.propagate = False


def _failure(rank: int, child: ProcessFailure) -> Failure:
    said = child.error_file_data.get("message")
    if not isinstance(said, dict):
        return Failure(rank, child.exitcode, message="", is_user_error=False)
    return Failure(
        rank,
        child.exitcode,
        message=str(said.get("message", "")),
        is_user_error=bool(said.get("extraInfo", {}).get("is_user_error")),
    )


def _likeliness(failure: Failure) -> tuple[int, int]:
    # A peer that was killed makes the others fail in their next collective, and the agent ends
    # what is left with SIGTERM: what was said to the user comes first, then the killed.
    if failure.is_user_error:
        return 0, failure.rank
    if failure.exit < 0 and failure.exit != -signal.SIGTERM:
        return 1, failure.rank
    return (2 if failure.message else 3), failure.rank
