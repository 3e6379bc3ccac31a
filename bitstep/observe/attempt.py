"""Which attempt a process writes to: those that train together share one, a later life the next.

1. `claim` goes through attempt-000, attempt-001 ... and takes the first that this process may
   join. Nobody coordinates: each step is one that only one process can win.
2. An attempt arrives with `life.json`, which says for whom it is: the launcher of these processes
   (torchrun, Slurm, MPI, their port), where one is known. Another launcher's is passed by.
3. Each process leaves `claim-RANK.json` in it. A rank that has one is in its next life.
4. An attempt is over for a process when those of its host that claimed it are gone, or torchrun
   has restarted since: a rank that died before it wrote must not join the life before.

    b1, then b2 of one driver, both rank 0        attempt-000, attempt-001
    rank 0 and rank 1 of one torchrun             attempt-000, both
    rank 1 dies before it claims, both restart    attempt-001, both

>>> claim(Path("/tmp/run"), rank=0, world=2)  # doctest: +SKIP
PosixPath('/tmp/run/attempt-000')
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bitstep.errors import RunError
from bitstep.trace.run import LIFE

MOST: Final = 1000
"""Attempts of a run, at most."""
NEAR: Final = 64
"""Claims of that many ranks next to ours are looked at: a host has neighbouring ranks, and a
launch of thousands must not read millions of files."""

_LAUNCHERS: Final = (
    # Not TORCHELASTIC_RESTART_COUNT: on several nodes each agent counts its own.
    "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT",
    "PMIX_NAMESPACE", "MASTER_PORT",
)  # fmt: skip
RESTARTS: Final = "TORCHELASTIC_RESTART_COUNT"
_CLAIM: Final = re.compile(r"claim-(\d{5,})\.json", re.ASCII)


def claim(directory: Path, rank: int, world: int = 0) -> Path:
    """The attempt directory for this process, made if missing. Raises RunError.

    Args:
        directory: of the run.
        rank: of this process, as its rows have it.
        world: how many processes train together, if that is known.
    """
    life = launch_id(os.environ)
    me = {**_myself(), "restarts": os.environ.get(RESTARTS, ""), "world": world}
    try:
        for number in range(MOST):
            attempt = directory / f"attempt-{number:03d}"
            _make(attempt, life)
            may_join = _read(attempt / LIFE).get("life") == life and not is_over(attempt, rank, me)
            if may_join and _take(attempt, rank, me):
                return attempt
    except OSError as error:
        where = error.filename or directory
        raise RunError(f"{where}: {error.strerror}: cannot begin an attempt there") from None
    raise RunError(f"{directory} holds {MOST} attempts: record into a new directory")


def claims(attempt: Path) -> dict[int, int]:
    """The world size that each rank claimed an attempt with, by rank."""
    folders = [attempt, *attempt.glob("ranks-*")]
    found = {rank: path for folder in folders for rank, path in _claims(folder).items()}
    worlds = {rank: _read(path).get("world") for rank, path in sorted(found.items())}
    return {rank: world if isinstance(world, int) else 0 for rank, world in worlds.items()}


def is_over(attempt: Path, rank: int, me: Mapping[str, Any]) -> bool:
    """Whether the processes of this host that wrote there belong to an earlier life."""
    found = _claims(_folder(attempt, rank))
    near = sorted(found, key=lambda other: abs(other - rank))[:NEAR]
    local = [it for it in (_read(found[other]) for other in near) if it.get("host") == me["host"]]
    if any(it.get("restarts") != me["restarts"] for it in local):
        return True
    return bool(local) and not any(map(_lives, local))


def launch_id(environment: Mapping[str, str]) -> str:
    """What the processes of one launch have in common, and those of another have not."""
    # A digest, because an id may be something that is not for everybody.
    known = [f"{name}={environment.get(name, '')}" for name in _LAUNCHERS]
    return hashlib.blake2b("\0".join(known).encode(), digest_size=8).hexdigest()


def _myself() -> dict[str, Any]:
    namespace = ""
    with contextlib.suppress(OSError):  # containers may share a name, and count processes anew
        namespace = os.readlink("/proc/self/ns/pid")
    host = f"{socket.gethostname()} {namespace}".strip()
    return {"host": host, "pid": os.getpid(), "started": _started(os.getpid())}


def _started(pid: int) -> int | None:
    """When a process started, in ticks since boot: its number may be used again. None: it is gone,
    or this is not Linux."""
    try:
        # pid (name) state ...: the name may hold spaces and brackets. Fields 3 and 22 of all.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _lives(claim: Mapping[str, Any]) -> bool:
    pid, started = claim.get("pid"), claim.get("started")
    if not isinstance(pid, int) or not isinstance(started, int):
        return True  # nobody knows
    return _started(pid) == started


def _make(attempt: Path, life: str) -> None:
    """Have the attempt there, with its life in it from the first moment."""
    if attempt.exists():
        return
    attempt.parent.mkdir(parents=True, exist_ok=True)
    # Not a random name: no random number of the program is drawn. No two threads share this one.
    unique = f"{_myself()} {threading.get_ident()}"
    name = hashlib.blake2b(unique.encode(), digest_size=8).hexdigest()
    whole = attempt.parent / f".attempt-{name}"
    try:
        whole.mkdir(exist_ok=True)
        (whole / LIFE).write_text(json.dumps({"life": life}))
        # Fails if another process was first: what holds a file is not replaced.
        os.rename(whole, attempt)
    except OSError:
        shutil.rmtree(whole, ignore_errors=True)
        if not attempt.exists():
            raise


def _take(attempt: Path, rank: int, me: Mapping[str, Any]) -> bool:
    folder = _folder(attempt, rank)
    folder.mkdir(exist_ok=True)
    if any(folder.glob(f"rank-{rank:05d}.*")):
        return False
    try:
        with (folder / f"claim-{rank:05d}.json").open("x") as file:
            json.dump(me, file)
    except FileExistsError:
        return False
    return True


def _folder(attempt: Path, rank: int) -> Path:
    """Where the files of a rank are: at most 1,000 ranks a folder."""
    return attempt if rank < 1000 else attempt / f"ranks-{rank // 1000:05d}"


def _claims(folder: Path) -> dict[int, Path]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    return {int(m[1]): folder / name for name in names if (m := _CLAIM.fullmatch(name))}


def _read(path: Path) -> dict[str, Any]:
    """What a claim says; nothing while it is being written, which counts as living."""
    try:
        content = json.loads(path.read_bytes()[:4096])
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
