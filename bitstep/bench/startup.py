"""What the contract adds to the start of a program, beyond imports: in fresh processes, by pieces.

1. Each repeat is two fresh processes that make a process group, as torchrun starts them; both do
   what a program under `--deterministic` does once, and the first is timed.
2. A piece is timed by the clock and by the processor time of its process: on a busy machine the
   second is the cost, the first has what others did meanwhile.
3. Imports of torch and of our own modules are done before, and are not in it; what git is asked is
   the launcher's, once a launch.

>>> bench_startup(repeats=1)  # doctest: +SKIP
(StartupRow(piece='deterministic', repeats=1, wall_ms=1.1, cpu_ms=1.1), ...)
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bitstep.bench.startup_arm import PIECES
from bitstep.errors import RunError
from bitstep.launch import versions
from bitstep.launch.deterministic import environment

TARGET: Final = 100.0
"""Milliseconds for all pieces of a process together."""
RANKS: Final = 2
TOTAL: Final = "total"
GIT: Final = "git (launcher)"
_SECONDS: Final = 240


@dataclass(frozen=True, slots=True)
class StartupRow:
    """One piece: medians over the repeats."""

    piece: str
    repeats: int
    wall_ms: float
    cpu_ms: float
    target_ms: float | None = None


def bench_startup(repeats: int = 7) -> tuple[StartupRow, ...]:
    """Measure on this machine. Raises RunError if a process fails; nothing else should run."""
    times = defaultdict(list)
    for _ in range(repeats):
        found = _run()
        for piece, pair in found.items():
            times[piece].append(pair)
        times[TOTAL].append((sum(p[0] for p in found.values()), sum(p[1] for p in found.values())))
        times[GIT].append(_git())
    return tuple(
        _row(piece, times[piece], TARGET if piece == TOTAL else None)
        for piece in (*PIECES, TOTAL, GIT)
    )


def _row(piece: str, pairs: list[tuple[float, float]], target: float | None) -> StartupRow:
    wall, cpu = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
    return StartupRow(piece, len(pairs), wall, cpu, target)


def _run() -> Mapping[str, tuple[float, float]]:
    """Piece to seconds by the clock and of the processor, of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        base = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        variables = environment(1, base)
        arms = [
            subprocess.Popen(
                [sys.executable, "-m", "bitstep.bench.startup_arm", folder, str(rank), str(RANKS)],
                env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(RANKS)
        ]  # fmt: skip
        try:
            said = [arm.communicate(timeout=_SECONDS) for arm in arms]
        except subprocess.TimeoutExpired:
            raise RunError(f"a process of the bench took longer than {_SECONDS} s") from None
        finally:
            for arm in arms:
                arm.kill()
        for arm, (_, error) in zip(arms, said, strict=True):
            if arm.returncode:
                cause = (error.strip().splitlines() or ["it said nothing"])[-1]
                raise RunError(f"a process of the bench failed: {cause}")
        pairs = json.loads(Path(folder, "seconds.json").read_text())
        return {piece: (wall, cpu) for piece, (wall, cpu) in pairs.items()}


def _git() -> tuple[float, float]:
    wall, cpu = time.perf_counter(), _children()
    versions.of_engine()
    return time.perf_counter() - wall, _children() - cpu


def _children() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
