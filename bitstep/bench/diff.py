"""Pairs of traces for the measurements of the diff: large ones, with one known first difference.

1. `make_op_pair`: two traces at level `op`, one process, ten million rows each; one op gives
   another result late in the run, and everything that is computed from it differs after it.
2. `make_wide_pair`: two runs of 2,432 processes at level `step`; one process has another loss
   late in the run, and the reduction of gradients spreads it to all in the same step.

Rows are written by the writer that a recorder uses. The streams of a wide run are hard links to
a few that were written once: 2,432 x 800 steps of rows would be 11 GB. So the column `rank` of a
stream is that of its donor; every index is a file of its own, in the name of its process.

    pair = make_op_pair(Path("scratch"), rows=100_000)
    pair.step, pair.op                                  # what a diff of left and right must find
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bitstep.trace import Columns, IndexEntry, TraceWriter, read_index
from bitstep.trace.files import make_folder
from bitstep.trace.index import NO_CHAIN, FileName, IndexBytes

OP_ROWS: Final = 2000
"""Rows of a step at level `op`: two, then calls of four rows, then two."""
_SCOPES: Final = (("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1),
                  ("optimizer", -1))  # fmt: skip
_LAYERS: Final = 12
_OPS: Final = ("aten::addmm", "aten::mul", "aten::native_layer_norm", "aten::gelu", "aten::view",
               "aten::bmm", "aten::_softmax", "aten::add")  # fmt: skip
_CALL: Final = (("args", "int64", ()), ("in.0", "float32", (8, 128, 256)),
                ("in.1", "float32", (256, 256)), ("out.0", "float32", (8, 128, 256)))  # fmt: skip
_STEP_SITES: Final = (
    ("level", "data", -1, "", "int64"),
    *(("rng", "data", -1, stream, "uint8") for stream in ("torch", "python", "numpy")),
    *(("batch", "data", microbatch, "", "int64") for microbatch in (0, 1)),
    *(("metric.loss", "backward", microbatch, "", "float32") for microbatch in (0, 1)),
    ("metric.grad_norm", "clip", -1, "", "float32"),
    *((f"args.{key}", "optimizer", -1, "group0", "float64") for key in
      ("betas.0", "betas.1", "eps", "lr", "weight_decay")),
    *((f"root.{part}", "optimizer", -1, "", "uint64") for part in
      ("grads", "params", "optimizer", "buffers")),
    *((f"count.{what}", "optimizer", -1, "", "int64") for what in
      ("ops", "threads", "compiled", "skipped")),
    ("root", "optimizer", -1, "", "uint64"),
)  # fmt: skip
"""Slot, phase, microbatch, module and dtype of the rows of a step at level `step`."""
_LOSS: Final = 7
"""Of them, the row where one process differs first: the loss of microbatch 1."""
_SPREAD: Final = (14, 15, 16, 22)
"""The rows in which all processes then differ: roots of gradients, parameters, optimizer, all."""

_Sums = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs (each with `attempt-000`), and the site where the second first differs."""

    left: Path
    right: Path
    process: int
    step: int
    phase: str
    module: str
    op: str
    slot: str


def make_op_pair(directory: Path, rows: int = 10_000_000) -> Pair:
    """Two runs of `rows` rows each; they differ from one `out.0` in the last tenth on."""
    steps = rows // OP_ROWS
    late, call = steps - steps // 10, 203
    for name in ("left", "right"):
        columns = Columns()
        sites = _op_sites(columns)
        with TraceWriter(directory / name / "attempt-000", 0) as trace:
            for step in range(1, steps + 1):
                sums = _op_sums(step)
                if name == "right" and step >= late:
                    _follow(sums, call if step == late else -1)
                _end_step(trace, columns, sites, step, sums)
    phase, _, module, op = _call(call)
    return Pair(directory / "left", directory / "right", 0, late, phase, module, op, "out.0")


def _call(call: int) -> tuple[str, int, str, str]:
    """Phase, microbatch, module and op of the n-th call of a step."""
    phase, microbatch = _SCOPES[call // (len(_OPS) * _LAYERS) % len(_SCOPES)]
    module = f"Net.layers.{call // len(_OPS) % _LAYERS}"
    return phase, microbatch, module, _OPS[call % len(_OPS)]


def _op_sites(columns: Columns) -> list[tuple[Any, ...]]:
    """The arguments of `Columns.add` for every row of a step, with a digest of 0."""
    data = columns.head(0, "data", "primary", -1, "", "")
    last = columns.head(0, "optimizer", "primary", -1, "", "")
    sites: list[tuple[Any, ...]] = [(data, 0, slot, 0, "int64", ()) for slot in ("level", "batch")]
    for call in range(OP_ROWS // 4 - 1):
        phase, microbatch, module, op = _call(call)
        head = columns.head(0, phase, "primary", microbatch, module, op)
        again = call // (len(_OPS) * _LAYERS * len(_SCOPES))
        sites += [(head, again, slot, 0, dtype, shape) for slot, dtype, shape in _CALL]
    return [*sites, (last, 0, "count.ops", 0, "int64", ()), (last, 0, "root", 0, "uint64", ())]


def _op_sums(step: int) -> _Sums:
    """Digests of a step: every call reads what the one before it gave."""
    sums = _mix(step, OP_ROWS)
    sums[0] = 3
    calls = sums[2:-2].reshape(-1, 4)
    calls[:, 0] = _mix(0, len(calls))
    calls[1:, 1] = calls[:-1, 3]
    return sums


def _follow(sums: _Sums, origin: int) -> None:
    """Change what a call gives and all that is computed from it; -1: what the step began with."""
    calls = sums[2:-2].reshape(-1, 4)
    calls[origin + 1 :, 1] ^= np.uint64(1)
    calls[max(origin, 0) :, 3] ^= np.uint64(1)
    if origin < 0:
        calls[:, 2] ^= np.uint64(1)
    sums[-1] ^= np.uint64(1)


def make_wide_pair(directory: Path, ranks: int = 2432, steps: int = 800) -> Pair:
    """Two runs of `ranks` processes; one of the second differs in a loss in the last tenth."""
    late, culprit = steps - steps // 10, ranks * 2 // 3
    for name in ("left", "right"):
        run = directory / name / "attempt-000"
        spread = range(late, steps + 1) if name == "right" else range(0)
        _write_stream(directory / name / "donor", steps, spread, loss=0)
        _link(directory / name / "donor", run, (rank for rank in range(ranks) if rank != culprit))
        _write_stream(directory / name / "culprit", steps, spread, loss=spread.start)
        _link(directory / name / "culprit", run, [culprit])
    left, right = directory / "left", directory / "right"
    return Pair(left, right, culprit, late, "backward", "", "", "metric.loss")


def _write_stream(folder: Path, steps: int, spread: range, loss: int) -> None:
    """The trace of one process, in which all differs from `spread` on, and the loss at `loss`."""
    columns = Columns()
    sites: list[tuple[Any, ...]] = [
        (columns.head(0, phase, "primary", microbatch, module, ""), 0, slot, 0, dtype, ())
        for slot, phase, microbatch, module, dtype in _STEP_SITES
    ]
    with TraceWriter(folder, 0, steps_per_file=steps) as trace:
        for step in range(1, steps + 1):
            sums = _mix(step, len(sites))
            sums[0] = 0
            sums[9:14] = _mix(0, 5)
            if step in spread:
                sums[list(_SPREAD)] ^= np.uint64(1)
            if loss and step >= loss:
                sums[_LOSS] ^= np.uint64(1)
            _end_step(trace, columns, sites, step, sums)


def _link(donor: Path, run: Path, ranks: Iterable[int]) -> None:
    """Give each of `ranks` the stream of `donor`, and an index of its own."""
    name = FileName(0, 0)
    entries = read_index(donor / name.index)
    for rank in ranks:
        mine = FileName(rank, 0)
        make_folder(run, mine.folder)
        os.link(donor / name.stream, run / mine.stream)
        (run / mine.index).write_bytes(_index_bytes(mine, entries))


def _index_bytes(name: FileName, entries: Iterable[IndexEntry]) -> bytes:
    index = IndexBytes(name, NO_CHAIN)
    return b"".join([index.header, *(index.entry(*entry[:-1]) for entry in entries)])


def _end_step(
    trace: TraceWriter, columns: Columns, sites: list[tuple[Any, ...]], step: int, sums: _Sums
) -> None:
    for site in sites:
        columns.add(*site)
    columns.digests[:] = sums.tolist()
    trace.end_step_columns(step, columns.digests[-1], columns)


def _mix(step: int, rows: int) -> _Sums:
    """Numbers that look like digests, the same in every run."""
    sums = np.arange(step << 20, (step << 20) + rows, dtype=np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        sums = (sums ^ sums >> np.uint64(33)) * np.uint64(factor)
    return sums ^ sums >> np.uint64(33)
