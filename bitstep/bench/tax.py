"""What determinism costs: the engine against itself with parts in the stock way.

1. A pair is two fresh processes one after the other, ours and the other; pairs alternate in which
   goes first, so that a machine that warms up or slows down favours neither.
2. The ratio of a pair is ours / other, of the medians over steps after a warm-up.
3. Of the ratios the median is given, with a bootstrap interval at 95%.

The first comparison is the tax; then one cause at a time; last, beside it, what someone would run
who does not care for bits.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bitstep.bench.tax_arm import Order
from bitstep.errors import RunError
from bitstep.launch.torchrun import run_workers
from bitstep.train.layout import Layout
from bitstep.train.recipe import load

TAX = ("reduction", "algorithms", "fingerprints")
CARELESS = (*TAX, "norm", "dispatch", "accumulation", "optimizer", "threads")
COMPARISONS: dict[str, tuple[str, ...]] = {
    "all included": TAX,
    "deterministic algorithms": ("algorithms",),
    "tree reduction": ("reduction",),
    "exact norm": ("norm",),
    "sorted dispatch": ("dispatch",),
    "fingerprints and trace": ("fingerprints",),
    "against careless": CARELESS,
}
"""What is compared: ours against ours with these parts in the stock way."""

RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class TaxRow:
    """One comparison, at one number of processes."""

    comparison: str
    processes: int
    pairs: int
    ours_ms: float
    """Median step of our arms, in milliseconds."""
    other_ms: float
    ratio: float
    """Median over pairs of ours / other."""
    low: float
    """Lower end of the bootstrap interval of the ratio, at 95%."""
    high: float


def bench_tax(
    recipe: str,
    *,
    processes: Sequence[int] = (1, 2),
    pairs: int = 5,
    warmup: int = 3,
    steps: int = 10,
    comparisons: Sequence[str] = tuple(COMPARISONS),
    changes: Sequence[str] = (),
    said: Callable[[TaxRow], None] = lambda row: None,
) -> tuple[TaxRow, ...]:
    """Measure a recipe on this machine; `said` hears of each row as it is known.

    Raises RecipeError, LayoutError, and RunError if an arm fails. Starts two processes a pair and
    comparison; nothing else should run meanwhile.
    """
    loaded = load(recipe, changes)
    for world in processes:
        Layout(loaded.layout.fan_ins, world, process=0, local_processes=world)
    rows = []
    for world in processes:
        for comparison in comparisons:
            order = Order(recipe, tuple(changes), COMPARISONS[comparison], warmup, steps, out="")
            rows.append(_row(comparison, world, list(_pairs(order, world, pairs))))
            said(rows[-1])
    return tuple(rows)


def _pairs(order: Order, world: int, pairs: int) -> Iterator[tuple[float, float]]:
    """Median step of ours and of the other, in seconds, pair by pair."""
    ours = replace(order, stock=())
    for number in range(pairs):
        if number % 2:
            other, mine = _median(order, world), _median(ours, world)
        else:
            mine, other = _median(ours, world), _median(order, world)
        yield mine, other


def _median(order: Order, world: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        word = replace(order, out=str(out)).to_word()
        failures = run_workers(["-m", "bitstep.bench.tax_arm", word], world)
        if not out.is_file():
            cause = failures[0].message if failures else "it wrote no times"
            raise RunError(f"a bench arm failed: {cause}")
        seconds: list[float] = json.loads(out.read_text())
        return statistics.median(seconds)


def _row(comparison: str, world: int, pairs: list[tuple[float, float]]) -> TaxRow:
    ratios = np.array([mine / other for mine, other in pairs])
    low, high = interval(ratios)
    return TaxRow(
        comparison=comparison,
        processes=world,
        pairs=len(pairs),
        ours_ms=1000 * statistics.median(mine for mine, _ in pairs),
        other_ms=1000 * statistics.median(other for _, other in pairs),
        ratio=float(np.median(ratios)),
        low=low,
        high=high,
    )


def interval(ratios: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The 95% bootstrap interval of the median of [pairs] ratios; the resampling is seeded."""
    draws = np.random.default_rng(0).choice(ratios, (RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    return float(low), float(high)
