"""How much a recording did, from its trace alone: rows, bytes hashed, bytes written.

A row of a tensor that was not carried and not skipped was hashed; its dtype and shape say how many
bytes that were. Metrics, texts and counts are none.

>>> nbytes_of("float32[1,0]", [4, 2])
32
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitstep.fingerprint.definition import SIZES
from bitstep.records import Flag
from bitstep.trace.reader import read_trace

_NOT_HASHED = Flag.CARRIED | Flag.SKIPPED | Flag.SCALAR | Flag.GAP | Flag.RAISED


@dataclass(frozen=True, slots=True)
class Counted:
    """Of a whole run: all attempts, all processes."""

    steps: int
    """Batches of one process, step 0 included; at least 1."""
    rows: int
    hashed: int
    """Bytes."""
    written: int
    """Bytes."""


def counted(run: Path) -> Counted:
    """Count the trace of a run. Raises TraceError as `read_trace` does."""
    steps = rows = hashed = written = 0
    for attempt in sorted(run.glob("attempt-*")):
        written += sum(file.stat().st_size for file in attempt.rglob("rank-*"))
        trace = read_trace(attempt)
        steps += len(trace.steps)
        for batch in trace.table().to_batches():
            rows += batch.num_rows
            hashed += _hashed(batch)
    return Counted(max(steps, 1), rows, hashed, written)


def _hashed(batch: Any) -> int:
    fresh = (batch.column("flags").to_numpy() & int(_NOT_HASHED)) == 0
    dtypes = batch.column("dtype").to_pylist()
    shapes = batch.column("shape").to_pylist()
    return sum(
        nbytes_of(dtype, shape)
        for is_fresh, dtype, shape in zip(fresh, dtypes, shapes, strict=True)
        if is_fresh
    )


def nbytes_of(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor by what its row says; 0 for a row of no tensor."""
    return SIZES.get(dtype.partition("[")[0], 0) * math.prod(shape)
