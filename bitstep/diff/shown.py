"""Since when it shows: the first step at which each metric, and the state root, differs.

1. State roots stand in the indexes; nothing else is read for them.
2. Metrics are read step by step from where the runs part, until each has differed once, the runs
   end, or `MOST_ROWS` rows were looked at.
3. A metric is compared by its bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from bitstep.diff.difference import Shown
from bitstep.diff.leave_out import NO_TENSORS
from bitstep.diff.legs import legs
from bitstep.diff.load import Life, Run
from bitstep.diff.rows import Codes, Decoder, Rows

MOST_ROWS: Final = 40_000_000
"""Rows that are looked at in search of metrics, at most."""
MOST_READS: Final = 20_000
"""Steps that are read in search of metrics, at most."""

Metrics = dict[tuple[str, int, int, str], tuple[tuple[int, str], str]]
"""(slot, microbatch, rank, module) -> bits and dtype, and the value in words."""


class Search(NamedTuple):
    """The metrics that differ, and whether the search came to the end of the runs."""

    found: tuple[Shown, ...]
    complete: bool


def metrics(processes: Sequence[int], since: int, a: Run, b: Run) -> Search:
    """The first step from `since` on at which each metric of these processes differs."""
    found: dict[str, Shown] = {}
    budget = [MOST_ROWS, MOST_READS]
    for process in processes:
        waiting: set[str] = set()
        for step, one, two in _both(process, since, a, b, budget):
            waiting |= {key[0] for key in one} - set(found)
            for key in one.keys() & two.keys():
                if one[key][0] != two[key][0] and _is_first(found, key[0], step):
                    name = key[0].removeprefix("metric.")
                    found[key[0]] = Shown(name, process, step, one[key][1], two[key][1])
            waiting -= set(found)
            if found and not waiting:
                break
    shown = sorted(found.values(), key=lambda item: (item.step, item.name))
    return Search(tuple(shown), min(budget) > 0)


def _is_first(found: dict[str, Shown], name: str, step: int) -> bool:
    return name not in found or step < found[name].step


def _both(
    process: int, since: int, a: Run, b: Run, budget: list[int]
) -> Iterator[tuple[int, Metrics, Metrics]]:
    for leg in legs(process, a, b):
        steps = leg.steps[leg.steps >= since]
        if leg.is_start or not len(steps):
            continue
        pairs = zip(
            _metrics(leg.a, process, steps.tolist(), budget),
            _metrics(leg.b, process, steps.tolist(), budget),
            strict=False,
        )
        for (step, one), (_, two) in pairs:
            if min(budget) <= 0:
                return
            yield step, one, two


def _metrics(
    life: Life, process: int, steps: Sequence[int], budget: list[int]
) -> Iterator[tuple[int, Metrics]]:
    codes = Codes()
    decoder = Decoder(codes)
    for found in life.index.batches(process, [step - life.offset for step in steps]):
        if found.batch is None:
            life.note(found.damage or "damaged")
            return
        budget[0] -= found.batch.num_rows
        budget[1] -= 1
        yield found.step + life.offset, _of(decoder.rows(_only_metrics(found.batch)))


def _only_metrics(batch: Any) -> Any:
    slots = batch.column("slot")
    words = slots.dictionary.to_pylist()
    wanted = np.array([word.startswith("metric.") for word in words], np.bool_)
    return batch.take(np.flatnonzero(wanted[slots.indices.to_numpy()]))


def _of(rows: Rows) -> Metrics:
    found: Metrics = {}
    for row in range(len(rows)):
        key = (rows.text("slot", row), int(rows.microbatch[row]), int(rows.rank[row]),
               rows.text("module", row))  # fmt: skip
        bits = int(rows.digest[row]), rows.text("dtype", row)
        found[key] = bits, rows.value(row) or f"{bits[0]:016x}"
    return found


def state(processes: Sequence[int], a: Run, b: Run) -> Shown | None:
    """The first step that ends with another state root on any of these processes."""
    first: Shown | None = None
    for process in processes:
        for leg in legs(process, a, b):
            roots = [_roots(life, process, leg.steps) for life in (leg.a, leg.b)]
            gone = (roots[0] == NO_TENSORS) | (roots[1] == NO_TENSORS)
            differ = np.flatnonzero((roots[0] != roots[1]) & ~gone)
            if len(differ) and (first is None or leg.steps[differ[0]] < first.step):
                at = differ[0]
                first = Shown("state root", process, int(leg.steps[at]),
                              f"{int(roots[0][at]):016x}", f"{int(roots[1][at]):016x}")  # fmt: skip
    return first


def _roots(life: Life, process: int, steps: np.ndarray) -> np.ndarray:
    index = life.index.process(process)
    found: np.ndarray = index.root[np.searchsorted(life.steps(process), steps)]
    return found
