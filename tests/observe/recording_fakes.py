"""Record a small program in this process and ask its rows, for tests of what the recorder sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bitstep import observe
from bitstep.records import Flag, Record
from bitstep.trace import read_trace
from bitstep.trace.schema import metric_value


class Recording:
    """The rows of the first attempt of a run."""

    def __init__(self, run: Path, attempt: str = "attempt-000") -> None:
        trace = read_trace(run / attempt)
        self.damage = trace.damage
        self.complete = trace.complete
        self.roots = dict(trace.steps)
        self.rows = [row for process in trace.processes for row in trace.records(process)]

    @property
    def steps(self) -> list[int]:
        """The training steps; step 0 is what came before."""
        return [step for step in self.roots if step]

    def of(self, **fields: Any) -> list[Record]:
        """The rows whose site has those fields."""
        return [
            row
            for row in self.rows
            if all(getattr(row.site, name) == value for name, value in fields.items())
        ]

    def one(self, **fields: Any) -> Record:
        """The only one of them."""
        found = self.of(**fields)
        assert len(found) == 1, (fields, found)
        return found[0]

    def per_step(self, **fields: Any) -> list[int]:
        """How many of them each training step has."""
        return [len(self.of(step=step, **fields)) for step in self.steps]

    def gaps(self) -> list[str]:
        """What is said to be missing."""
        return [row.site.op for row in self.rows if row.flags & Flag.GAP]

    def ops(self, **fields: Any) -> list[str]:
        """The operations, once for each run of rows of one call."""
        calls: list[tuple[Any, ...]] = []
        for row in self.of(**fields):
            call = row.site._replace(slot="", part="")
            if call.op and row.site.phase and calls[-1:] != [call]:
                calls.append(call)
        return [call.op for call in calls if "." in call.op]

    def value(self, **fields: Any) -> float | int:
        """The value of the only such row."""
        row = self.one(**fields)
        return metric_value(row.digest, row.dtype)


def recorded(
    run: Path, program: Callable[[Any], object], level: str = "op", **options: Any
) -> Recording:
    """Record `program`, which is given the recorder, and read the trace."""
    with observe.record(run, level=level, **options) as recorder:
        program(recorder)
    return Recording(run)


def small() -> nn.Sequential:
    """A model of two layers, always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def data(steps: int, rows: int = 2) -> Iterator[torch.Tensor]:
    """A batch per step, none of them drawn."""
    for step in range(steps):
        yield torch.arange(3.0 * rows).reshape(rows, 3) / (step + 7)


def train(model: nn.Module, optimizer: Any, steps: int = 2, accumulate: int = 1) -> None:
    """A plain loop."""
    for number, batch in enumerate(data(steps * accumulate)):
        model(batch).square().mean().backward()
        if number % accumulate == accumulate - 1:
            optimizer.step()
            optimizer.zero_grad()
