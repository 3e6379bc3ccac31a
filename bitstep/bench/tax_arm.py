"""One arm of `bitstep bench tax`: a fresh process that times steps, with parts replaced.

    python -m bitstep.bench.tax_arm '{"recipe": "small", "stock": ["reduction"], ...}'

The environment is set before torch is imported; what is timed is a whole step of training as the
loop does it, recording included, after a warm-up.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitstep.state.processes import Processes
    from bitstep.train.build import Engine
    from bitstep.train.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Order:
    """What one arm does."""

    recipe: str
    changes: tuple[str, ...]
    stock: tuple[str, ...]
    """Parts that are replaced by the stock ones."""
    warmup: int
    steps: int
    out: str
    """File that receives the seconds of each step, as JSON."""

    def to_word(self) -> str:
        """The order as one word of a command line."""
        return json.dumps(asdict(self))


def main(word: str) -> None:
    """Do what the order says, in this process, and end it."""
    order = Order(**json.loads(word))
    from bitstep.launch import environment
    from bitstep.launch.parent import die_with_parent
    from bitstep.train.recipe import load

    die_with_parent()
    recipe = load(order.recipe, order.changes)
    threads = (os.cpu_count() or 1) if "threads" in order.stock else recipe.layout.threads
    environment.apply(threads)

    from bitstep.launch.worker import join, leave, settle

    settle(threads)
    processes = join()
    seconds = _measure(order, recipe, processes)
    if processes.rank == 0:
        Path(order.out).write_text(json.dumps(seconds))
    leave(0, processes)


def _measure(order: Order, recipe: Recipe, processes: Processes) -> list[float]:
    """Seconds of each step after the warm-up."""
    from bitstep.trace import TraceWriter
    from bitstep.train.rows import step_rows
    from bitstep.train.step import train_step

    engine, seconds, seq = _engine(order, recipe, processes), [], count()
    with (
        tempfile.TemporaryDirectory() as folder,
        TraceWriter(Path(folder), processes.rank) as trace,
    ):
        for _ in range(order.warmup + order.steps):
            began = time.perf_counter()
            result = train_step(engine)
            if "fingerprints" not in order.stock:
                trace.write(step_rows(result, engine.layout, None, seq))
                trace.end_step(result.step, result.roots["state"])
            seconds.append(time.perf_counter() - began)
    return seconds[order.warmup :]


def _engine(order: Order, recipe: Recipe, processes: Processes) -> Engine:
    from bitstep.bench import stock
    from bitstep.faults import Fault
    from bitstep.train.build import build
    from bitstep.train.data import read_corpus
    from bitstep.train.layout import Layout

    for name in order.stock:
        if name in stock.BEFORE_BUILD:
            stock.BEFORE_BUILD[name]()
    fault = Fault("stock-reduction") if "reduction" in order.stock else None
    layout = Layout(recipe.layout.fan_ins, processes.world, processes.rank, processes.world)
    corpus = read_corpus(recipe)
    engine = build(recipe, layout, processes, corpus, fault)
    for name in order.stock:
        if name in stock.AFTER_BUILD:
            stock.AFTER_BUILD[name](engine)
    return engine


if __name__ == "__main__":
    main(sys.argv[1])
