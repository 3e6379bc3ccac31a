"""A step as rows of the trace, at level `step`.

What belongs to the whole run is written by process 0 alone, with rank WHOLE_RUN; what belongs to a
logical rank by the process that stands for it. So runs of different layouts hold the same sites,
spread over other files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bitstep.records import WHOLE_RUN, Fingerprint, Record, Site
from bitstep.trace.schema import metric_bits
from bitstep.train.layout import Layout
from bitstep.train.step import StepResult

# The phase whose work a metric closes; a loss that is not here belongs to forward.
_PHASE = {
    "metric.tokens": "data",
    "metric.grad_norm": "clip",
    "metric.lr": "optimizer",
    "metric.eval_loss": "eval",
}

_ORDER = ("data", "forward", "reduce", "clip", "optimizer", "eval")


def step_rows(
    result: StepResult, layout: Layout, evaluation: float | None, seq: Iterator[int]
) -> list[Record]:
    """The rows that this process writes for a step, with its held-out loss where there is one.

    `seq` numbers the rows of this process through the attempt.
    """
    rows = list(_leaf_rows(result, layout))
    if layout.process == 0:
        extra = {} if evaluation is None else {"eval_loss": evaluation}
        rows += _metric_rows(result.step, {**result.metrics, **extra})
        rows += _root_rows(result.step, result.roots, "optimizer")
    # Within a process the order of rows is that of causes: what differs first came first.
    rows.sort(key=lambda row: _ORDER.index(row.site.phase))
    return [row._replace(seq=next(seq)) for row in rows]


def start_rows(
    step: int, roots: Mapping[str, int], layout: Layout, seq: Iterator[int]
) -> list[Record]:
    """The roots of the state that an attempt begins with, `step` steps after the first."""
    rows = _root_rows(step, roots, "start") if layout.process == 0 else ()
    return [row._replace(seq=next(seq)) for row in rows]


def _root_rows(step: int, roots: Mapping[str, int], phase: str) -> Iterator[Record]:
    for name, value in roots.items():
        slot = "root" if name == "state" else f"root.{name}"
        site = Site(step, WHOLE_RUN, "reduce" if name == "gradients" else phase, slot)
        yield Record(-1, site, value, "uint64")


def _metric_rows(step: int, metrics: Mapping[str, float]) -> Iterator[Record]:
    for name, value in metrics.items():
        slot = f"metric.{name}"
        site = Site(step, WHOLE_RUN, _PHASE.get(slot, "forward"), slot)
        dtype = "int64" if isinstance(value, int) else "float64"
        yield Record(-1, site, metric_bits(value, dtype), dtype)


def _leaf_rows(result: StepResult, layout: Layout) -> Iterator[Record]:
    for rank in layout.leaves():
        yield _tensor_row(Site(result.step, rank, "data", "batch"), result.batches[rank])
        yield _tensor_row(Site(result.step, rank, "forward", "rng"), result.randoms[rank])
        site = Site(result.step, rank, "forward", "metric.loss")
        yield Record(-1, site, metric_bits(result.leaf_losses[rank], "float32"), "float32")


def _tensor_row(site: Site, fingerprint: Fingerprint) -> Record:
    return Record(-1, site, fingerprint.sum, fingerprint.dtype, fingerprint.shape)
