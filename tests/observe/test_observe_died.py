"""A program that raises between two steps: what led to it is in the recording, and is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from recording_fakes import data, recorded, small

from bitstep.diff import Kind, compare_runs
from bitstep.records import Outcome
from bitstep.trace.run import read_run

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Embedding(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    tokens = torch.arange(4)
    if step == 1:
        tokens = torch.add(tokens, int(sys.argv[1]))
    if int(tokens.max()) >= 8:
        raise ValueError("no such token")
    model(tokens).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


IN_AN_OPTIMIZER = """
import sys
import torch

class Careful(torch.optim.SGD):
    def step(self):
        for group in self.param_groups:
            shift = torch.zeros(1) + int(sys.argv[1])
            if shift.item() > 5:
                raise ValueError("too far")
        return super().step()

torch.manual_seed(0)
first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
model = torch.nn.Sequential(first, second)
optimizers = [torch.optim.SGD(first.parameters(), lr=0.1), Careful(second.parameters(), lr=0.1)]
model(torch.ones(3, 2)).sum().backward()
for optimizer in optimizers:
    optimizer.step()
"""


def record(folder: Path, name: str, shift: int, program: str = PROGRAM) -> tuple[Path, int]:
    script = folder / "train.py"
    script.write_text(program)
    words = [sys.executable, "-m", "bitstep", "-q", "record", "-o", str(folder / name)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*words, "--", sys.executable, str(script), str(shift)],
        env=environment, capture_output=True, timeout=200,
    )  # fmt: skip
    return folder / name, done.returncode


def test_the_operation_that_led_to_it_is_named(tmp_path: Path) -> None:
    (a, fine), (b, raised) = record(tmp_path, "a", 0), record(tmp_path, "b", 9)
    assert (fine, raised) == (0, 1)
    found = compare_runs(a, b)
    assert found.outcome is Outcome.DIFFERENT
    (cause,) = found.causes
    assert (cause.kind, cause.where.step, cause.where.op) == (
        Kind.CONFIGURATION,
        1,
        "aten.add.Tensor",
    )
    assert "B, rank 0, step 1: gap: the program died: ValueError" in found.notes
    # Whoever ends as planned has nothing of a next step.
    assert list(read_run(a)[0].trace.steps) == [0, 1, 2, 3]
    assert list(read_run(b)[0].trace.steps) == [0, 1]


def test_the_settings_that_a_run_did_not_live_to_use_are_no_other_settings(tmp_path: Path) -> None:
    (a, _), (b, raised) = (
        record(tmp_path, name, shift, IN_AN_OPTIMIZER) for name, shift in (("a", 0), ("b", 9))
    )
    assert raised == 1
    (cause,) = compare_runs(a, b).causes
    assert (cause.where.phase, cause.where.op) == ("optimizer", "aten.add.Tensor")


def test_a_program_that_died_of_nothing_that_differs_could_not_be_told(tmp_path: Path) -> None:
    (a, _), (b, _) = record(tmp_path, "a", 9), record(tmp_path, "b", 9)
    found = compare_runs(a, b)
    assert (found.outcome, found.causes) == (Outcome.SAME, ())
    assert "B, rank 0, step 1: gap: the program died: ValueError" in found.notes


def test_a_step_that_an_engine_has_begun_is_written_too(tmp_path: Path, monkeypatch: Any) -> None:
    """Megatron's adapter says when a step begins: its data belong to it."""

    def program(recorder: Any) -> None:
        events = recorder.engine().events
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(next(iter(data(1)))).sum().backward()
        optimizer.step()
        events.new_work(training=True)
        torch.ones(3).add(1)
        monkeypatch.setattr(sys, "last_value", ValueError("no such token"), raising=False)

    found = recorded(tmp_path / "a", program, level="op")
    ops = [row.site.op for row in found.rows if row.site.step == 2]
    assert "aten.add.Tensor" in ops
    assert "the program died: ValueError" in ops
