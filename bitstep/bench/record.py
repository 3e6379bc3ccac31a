"""What recording costs: a program against itself, bare, at each level and under torch's DebugMode.

1. A pair is two fresh processes one after the other, the arm and the bare program; pairs alternate
   in which goes first.
2. The ratio of a pair is arm / bare, of the medians over steps after a warm-up; of the ratios the
   median is given, with a bootstrap interval at 95%.
3. Beside it stands what the arm did per step: rows, bytes hashed, bytes written, from its trace.

>>> bench_record("small", arms=("op",), pairs=1)  # doctest: +SKIP
(RecordRow(size='small', arm='op', ...),)
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bitstep.bench.record_arm import DEBUG_MODE, MSPROBE, RECORDED, Order
from bitstep.bench.tax import interval
from bitstep.errors import RunError
from bitstep.trace.hashed import counted

ARMS: Final = (*RECORDED, DEBUG_MODE, MSPROBE)
TARGETS: Final = {
    "large": {"step": 1.02, "phase": 1.04, "module": 1.06, "op": 1.25, "op rehashed": 1.4},
    "small": {"step": 1.15, "op": 5.0},
}
"""Ratios that are meant to be kept."""
STEPS: Final = {"large": (3, 12), "small": (30, 150)}
"""Warm-up and timed steps of an arm."""


@dataclass(frozen=True, slots=True)
class RecordRow:
    """One arm against the bare program."""

    size: str
    arm: str
    pairs: int
    bare_ms: float
    arm_ms: float
    ratio: float
    low: float
    """Lower end of the bootstrap interval of the ratio, at 95%."""
    high: float
    target: float | None
    rows: float
    """Per step; 0 for an arm that records nothing."""
    hashed: float
    """Bytes per step."""
    written: float
    """Bytes per step."""


@dataclass(frozen=True, slots=True)
class _Arm:
    median: float
    rows: float = 0
    hashed: float = 0
    written: float = 0


def bench_record(
    size: str,
    *,
    arms: Sequence[str] = ARMS,
    pairs: int = 5,
    said: Callable[[RecordRow], None] = lambda row: None,
) -> tuple[RecordRow, ...]:
    """Measure a size of the program on this machine; `said` hears of each row as it is known.

    An arm that is `skipped` here has no row.

    Raises RunError if an arm fails. Nothing else should run meanwhile.
    """
    rows = []
    for arm in arms:
        if skipped(arm):
            continue
        rows.append(_row(size, arm, list(_pairs(size, arm, pairs))))
        said(rows[-1])
    return tuple(rows)


def skipped(arm: str) -> str | None:
    """Why an arm cannot be measured here, or None."""
    if arm == MSPROBE and importlib.util.find_spec("msprobe") is None:
        return "skipped: pip install mindstudio-probe, in an environment of its own"
    return None


def _pairs(size: str, arm: str, pairs: int) -> Iterator[tuple[_Arm, _Arm]]:
    for number in range(pairs):
        if number % 2:
            bare, mine = _run(size, "bare"), _run(size, arm)
        else:
            mine, bare = _run(size, arm), _run(size, "bare")
        yield mine, bare


def _run(size: str, arm: str) -> _Arm:
    warmup, steps = STEPS[size]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        word = Order(size, arm, warmup, steps, name).to_word()
        command = [sys.executable, "-m", "bitstep.bench.record_arm", word]
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            cause = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise RunError(f"the bench arm {arm!r} failed: {cause}")
        median = statistics.median(json.loads((folder / "seconds.json").read_text()))
        if not (folder / "run").is_dir():
            return _Arm(median)
        found = counted(folder / "run")
        return _Arm(
            median,
            found.rows / found.steps,
            found.hashed / found.steps,
            found.written / found.steps,
        )


def _row(size: str, arm: str, pairs: Sequence[tuple[_Arm, _Arm]]) -> RecordRow:
    ratios = np.array([mine.median / bare.median for mine, bare in pairs])
    low, high = interval(ratios)
    last = pairs[-1][0]
    return RecordRow(
        size=size,
        arm=arm,
        pairs=len(pairs),
        bare_ms=1000 * statistics.median(bare.median for _, bare in pairs),
        arm_ms=1000 * statistics.median(mine.median for mine, _ in pairs),
        ratio=float(np.median(ratios)),
        low=low,
        high=high,
        target=TARGETS[size].get(arm),
        rows=last.rows,
        hashed=last.hashed,
        written=last.written,
    )
