"""Where the processes of an attempt were: hosts, ranks per host, the order in which they started.

1. A process knows its own node from what its launcher exported.
2. Of all ranks each recorded process has left a claim in the attempt's folder; whoever reads the
   run puts them together. Nobody has to talk while it trains.

>>> ranks([0, 1, 2, 5])
'0-2,5'
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from bitstep.contract.manifest import Manifest, read_manifest

MOST: Final = 4096
"""Claims that are read, at most."""
CLAIM_BYTES: Final = 4096
TICKS: Final = 100
"""Processes that start within a second of the one before count as started together."""
_COUNTS: Final = {"nodes": ("GROUP_WORLD_SIZE", "SLURM_NNODES"),
                  "on_a_node": ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")}  # fmt: skip
_CLAIM: Final = re.compile(r"claim-(\d{5,9})\.json", re.ASCII)


def node(environment: Mapping[str, str]) -> dict[str, int]:
    """What the launcher of this process said about nodes; {} without one."""
    found = {}
    for name, variables in _COUNTS.items():
        said = [environment[v] for v in variables if environment.get(v, "").isdecimal()]
        if said:
            found[name] = int(said[0])
    return found


def newest(run: Path) -> Manifest:
    """The manifest of the newest attempt, and where its ranks were. Raises ContractError."""
    attempt = read_manifest(run)[-1]
    found = placed(run / f"attempt-{attempt.attempt:03d}")
    return Manifest({**found, **attempt.manifest.keys}, attempt.manifest.declared)


def placed(attempt: Path) -> dict[str, Any]:
    """Keys for the manifest, from the claims in the folder of an attempt of several ranks."""
    claims = {rank: claim for rank, path in _claims(attempt)[:MOST] if (claim := _read(path))}
    if len(claims) < 2:
        return {}
    order = sorted(claims)
    names = {rank: _host(claims[rank]) for rank in order}
    keys: dict[str, Any] = {"layout.physical.hosts": hosts(names)}
    started = {rank: claims[rank].get("started") for rank in order}
    if len(set(names.values())) == 1 and all(type(t) is int for t in started.values()):
        keys["layout.physical.started"] = _together(started)
    return keys


def hosts(names: Mapping[int, str]) -> list[str]:
    """Rank to host, in the order of the ranks, as lines.

    >>> hosts({0: "a", 1: "a", 2: "b"})
    ['a: 0-1', 'b: 2']
    """
    grouped = groupby(sorted(names), lambda rank: names[rank])
    return [f"{host}: {ranks(found)}" for host, found in grouped]


def _together(started: Mapping[int, Any]) -> list[str]:
    groups: list[list[int]] = []
    last = None
    for rank in sorted(started, key=lambda rank: (started[rank], rank)):
        if last is None or started[rank] - last > TICKS:
            groups.append([])
        groups[-1].append(rank)
        last = started[rank]
    return [ranks(sorted(group)) for group in groups]


def ranks(numbers: Iterable[int]) -> str:
    """Numbers as ranges, in their order."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    return ",".join("-".join(map(str, span)) for span in spans)


def _claims(attempt: Path) -> list[tuple[int, Path]]:
    try:
        names = os.listdir(attempt)
    except OSError:
        return []
    folders = [attempt, *(attempt / name for name in names if re.fullmatch(r"ranks-\d{5}", name))]
    found = {}
    for folder in folders:
        for name in names if folder == attempt else os.listdir(folder):
            if match := _CLAIM.fullmatch(name):
                found[int(match[1])] = folder / name
    return sorted(found.items())


def _read(path: Path) -> dict[str, Any]:
    # Neither a link out of the run, nor a pipe that is waited for without end.
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(
                name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:  # fmt: skip
            content = json.loads(file.read(CLAIM_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _host(claim: Mapping[str, Any]) -> str:
    """Without the namespace of the process, which another start has another of."""
    said = claim.get("host")
    return said.split(" ")[0][:100] if isinstance(said, str) else "unknown"
