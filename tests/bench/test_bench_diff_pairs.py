"""The pairs that the diff is measured with hold what they say, and one first difference."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bitstep.bench.diff import OP_ROWS, make_op_pair, make_wide_pair
from bitstep.records import Record
from bitstep.trace import read_indexes, read_trace
from bitstep.trace.rows import decode


def records(run: Path, process: int, step: int) -> list[Record]:
    found = read_indexes(run / "attempt-000").batch(process, step)
    assert found is not None
    return list(decode(found.batch))


def test_an_op_pair_differs_from_one_result_on(tmp_path: Path) -> None:
    pair = make_op_pair(tmp_path, rows=20 * OP_ROWS)
    left, right = (read_trace(run / "attempt-000") for run in (pair.left, pair.right))
    assert (left.complete, right.complete, len(left.steps)) == (True, True, 20)
    assert [step for step in left.steps if left.steps[step] != right.steps[step]] == [18, 19, 20]
    assert pair.step == 18
    rows = list(zip(records(pair.left, 0, 18), records(pair.right, 0, 18), strict=True))
    assert len(rows) == OP_ROWS
    assert all(a.site == b.site for a, b in rows)
    first, _ = next((a, b) for a, b in rows if a.digest != b.digest)
    site = first.site
    assert (site.phase, site.module, site.op, site.slot) == (
        pair.phase, pair.module, pair.op, pair.slot,
    )  # fmt: skip
    assert len({row.site for row, _ in rows}) == OP_ROWS
    assert not [a for a, b in rows if a.site.slot == "args" and a.digest != b.digest]


def test_a_wide_pair_differs_in_one_loss_and_then_everywhere(tmp_path: Path) -> None:
    pair = make_wide_pair(tmp_path, ranks=1502, steps=10)
    left, right = (read_indexes(run / "attempt-000") for run in (pair.left, pair.right))
    assert (left.complete, right.complete) == (True, True)
    assert left.processes == right.processes == tuple(range(1502))
    for process in (0, 1001, 1501):
        different = left.process(process).root != right.process(process).root
        assert left.process(process).step[different].tolist() == [9, 10]
    assert (pair.process, pair.step) == (1001, 9)
    slots = {
        process: [
            (a.site.slot, a.site.microbatch)
            for a, b in zip(
                records(pair.left, process, 9), records(pair.right, process, 9), strict=True
            )
            if a.digest != b.digest
        ]
        for process in (0, 1001)
    }
    spread = [("root.grads", -1), ("root.params", -1), ("root.optimizer", -1), ("root", -1)]
    assert slots == {0: spread, 1001: [("metric.loss", 1), *spread]}
    names = {path.stat().st_ino for path in (pair.left / "attempt-000").rglob("*.index")}
    assert len(names) == 1502
    assert np.array_equal(left.process(1001).bytes_sum, left.process(0).bytes_sum)
