"""Inside one worker: settle torch, join the others, leave. Imports torch.

1. `settle` makes torch strict and fixes its threads, before the first operation.
2. `join` opens the process group: gloo on CPU, NCCL on a GPU (never run here), and has it measured.
3. `leave` ends a worker whose work is done, without tearing the group down.

>>> enforced = settle(threads=1)
>>> join().world
1
"""

from __future__ import annotations

import contextlib
import os
from typing import NoReturn

import torch
import torch.distributed as dist

from bitstep.contract.enforce import Enforced
from bitstep.contract.groups import measure_group
from bitstep.contract.rules import BY_NAME
from bitstep.errors import RunError
from bitstep.launch.torchrun import abandon, is_worker
from bitstep.state.processes import Processes


def settle(threads: int) -> Enforced:
    """Make torch deterministic, strictly, with that many threads; the rules of the contract.

    Raises RunError if torch cannot have that many, ContractError if somebody else has set torch
    to what the rules do not accept.
    """
    # The engine compiles nothing; but should something import Inductor, it finds this.
    inductor = BY_NAME["TORCHINDUCTOR_DETERMINISTIC"]
    os.environ[inductor.name] = str(inductor.fill)
    enforced = Enforced(threads)
    try:
        enforced.settings()
    except RuntimeError as error:
        cause = str(error).partition("\n")[0]
        raise RunError(f"layout.threads = {threads}: torch refuses ({cause}); set fewer") from None
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    return enforced


def join() -> Processes:
    """Open the process group that torchrun describes, or one of this process alone."""
    if dist.is_initialized():
        return _seen()
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if is_worker():
        dist.init_process_group(backend)
    else:
        # FSDP2 wants a group even for one; this one opens no port.
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    # For the manifest, before anything is trained: no sum of the engine depends on it.
    measure_group(dist.group.WORLD)
    return _seen()


def _seen() -> Processes:
    world = dist.get_world_size()
    return Processes(
        rank=dist.get_rank(),
        world=world,
        local_world=int(os.environ.get("LOCAL_WORLD_SIZE", world)),
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    )


def wait_for_all(processes: Processes) -> None:
    """Come to the end of the work together, before `torchrun.abandon` ends each process.

    A peer that is gone by now had done its work as well: it had come to the barrier that the loop
    has before the end marker.
    """
    with contextlib.suppress(RuntimeError):
        processes.barrier()


def leave(status: int, processes: Processes) -> NoReturn:
    """End this worker with that status, once every other has come here too."""
    wait_for_all(processes)
    abandon(status)
