"""Whatever happens to the recording, the program goes on; and the trace says what is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from recording_fakes import Recording, data, recorded, small, train
from torch import nn

from bitstep import observe
from bitstep.errors import BitstepError
from bitstep.observe import events, native, seen, snapshot

ROOT = Path(__file__).parents[2]
PROGRAM = """
import resource, sys
import torch
from bitstep import observe

{before}
torch.manual_seed(0)
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
with observe.record(sys.argv[1], level="op", strict={strict}) as recorder:
    for step in range(200):
        model(torch.ones(2, 3)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
print("trained", model.weight.sum().item())
sys.exit(7)
"""
FILE_LIMIT = "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))"


def program(run, before="", strict=False):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before, strict=strict), str(run)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
    )


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    done = program(tmp_path_factory.mktemp("bare") / "run")
    assert done.returncode == 7, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_disk_that_is_full_ends_the_recording_and_not_the_program(tmp_path, bare):
    done = program(tmp_path / "run", FILE_LIMIT)
    assert done.returncode == 7
    assert done.stdout == bare
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("bitstep: recording stopped: ")
    found = Recording(tmp_path / "run")
    assert not found.complete
    assert 0 < len(found.steps) < 200


def test_with_strict_a_disk_that_is_full_ends_the_program(tmp_path):
    done = program(tmp_path / "run", FILE_LIMIT, strict=True)
    assert done.returncode == 1
    assert "TraceError: recording stopped" in done.stderr


def test_a_directory_that_may_not_be_written_ends_the_recording_alone(tmp_path, bare):
    (tmp_path / "run").write_text("a file, because root may write into any directory")
    done = program(tmp_path / "run")
    assert done.returncode == 7
    assert done.stdout == bare
    assert len(done.stderr.splitlines()) == 1


def test_without_stderr_the_program_goes_on(tmp_path, bare):
    before = f"import os; os.close(2); sys.stderr = None; {FILE_LIMIT}"
    done = program(tmp_path / "run", before)
    assert (done.returncode, done.stdout) == (7, bare)


class Broken(Exception):
    """Of a hook of ours."""


def breaks(_):
    raise Broken("no\nbits")


def steps_of(tmp_path, level="op", **options):
    model, kept = small(), []

    def loop(_):
        for _ in range(4):
            train(model, torch.optim.Adam(model.parameters(), lr=0.1), steps=1)
        kept.append(model[0].weight.detach().clone())

    return recorded(tmp_path / "run", loop, level, **options), kept[0]


def test_a_hook_of_ours_that_raises_lowers_the_level_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "load", lambda: None)  # Of Python's; of the other: its own tests.
    _, expected = steps_of(tmp_path / "bare")
    calls = []

    def sometimes(tensor, digest_of=seen.digest_of):
        calls.append(1)
        if len(calls) == 300:
            raise Broken("no\nbits")
        return digest_of(tensor)

    monkeypatch.setattr(seen, "digest_of", sometimes)
    found, weight = steps_of(tmp_path)
    assert torch.equal(weight, expected)
    assert found.complete
    assert found.steps == [1, 2, 3, 4]
    (gap,) = found.gaps()
    assert gap.startswith("from here on at most level module: Broken: no")
    levels = [row.digest for row in found.of(slot="level")]
    assert levels[0] == 3
    assert levels[-1] == 2


@pytest.mark.parametrize("where", [(events, "metric_row"), (seen, "digest_of")])
def test_hooks_that_always_raise_end_the_recording_with_one_line(
    tmp_path, monkeypatch, capfd, where
):
    _, expected = steps_of(tmp_path / "bare")
    monkeypatch.setattr(*where, breaks)
    _, weight = steps_of(tmp_path)
    assert torch.equal(weight, expected)
    assert len(capfd.readouterr().err.splitlines()) <= 1


def test_what_raises_while_a_module_is_named_stops_nothing(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 1)

        def named_modules(self, *args, **kwargs):
            raise Broken("not mine")

        def forward(self, x):
            return self.inner(x)

    model = Net()

    def loop(_):
        for batch in data(3):
            model(batch).mean().backward()

    found = recorded(tmp_path / "run", loop)
    assert found.complete
    assert "Broken: not mine" in found.gaps()[0]


def test_strict_raises_what_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "digest_of", breaks)
    with pytest.raises(BitstepError, match="Broken"):
        steps_of(tmp_path, strict=True)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_after_the_recording_has_stopped_nothing_more_is_kept(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(snapshot, "digest_of", breaks)
    model = small()
    with observe.record(tmp_path / "run") as recorder:
        for _ in range(3):
            train(model, torch.optim.Adam(model.parameters(), lr=0.1), steps=3)
        assert len(recorder._columns) == 0
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_a_budget_that_is_nearly_spent_lowers_the_level_step_by_step(tmp_path, capfd):
    model = small()

    def loop(_):
        train(model, torch.optim.Adam(model.parameters(), lr=0.1), steps=60)

    recorded(tmp_path / "whole", loop)
    size = sum(file.stat().st_size for file in (tmp_path / "whole").rglob("*.arrows"))
    found = recorded(tmp_path / "run", loop, budget=str(size // 2))
    levels = [row.digest for row in found.of(slot="level")]
    assert levels == sorted(levels, reverse=True)
    assert set(levels) >= {3, 2, 1}
    assert found.gaps()[0].startswith("from here on at most level module: the budget of")
    assert len(found.steps) > 35
    spent = sum(file.stat().st_size for file in (tmp_path / "run").rglob("*.arrows"))
    assert spent < size * 0.6


def test_the_control_file_raises_the_level_of_a_live_run_for_some_steps(tmp_path):
    model = small()

    def loop(_):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        train(model, optimizer, steps=2)
        control = 'level = "op"\nfrom_step = 4\nto_step = 6\n'
        (tmp_path / "run" / "control.toml").write_text(control)
        train(model, optimizer, steps=5)

    found = recorded(tmp_path / "run", loop, "step")
    assert [row.digest for row in found.of(slot="level")] == [0, 0, 0, 0, 3, 3, 0, 0]
    assert [len(found.ops(step=step)) > 10 for step in found.steps] == [
        False, False, False, True, True, False, False,
    ]  # fmt: skip


def test_only_the_steps_of_the_window_have_the_level(tmp_path):
    found, _ = steps_of(tmp_path, steps="2:4")
    assert [row.digest for row in found.of(slot="level")] == [0, 0, 3, 3, 0]
    assert "aten.addmm" in found.ops(step=3)
    assert found.ops(step=4) == found.ops(step=1) == []
    assert found.per_step(slot="metric.loss") == [1, 1, 1, 1]


def test_only_the_modules_that_are_asked_for_have_rows_of_operations(tmp_path):
    found, _ = steps_of(tmp_path, modules="Sequential.2,*.none")
    forward = [row.site for row in found.of(step=2) if row.site.op and "." in row.site.op]
    assert {site.module for site in forward} == {"Sequential.2"}
    assert {site.phase for site in forward} == {"forward", "backward"}
    assert {row.site.module for row in found.of(step=2, slot="in.0", op="")} == {"Sequential.2"}


def test_a_rank_that_is_not_asked_for_leaves_no_file_and_costs_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = small()
    with observe.record(tmp_path / "run", ranks="0,3") as recorder:
        train(model, torch.optim.Adam(model.parameters(), lr=0.1), steps=2)
        assert recorder._events.asleep
        assert len(recorder._columns) == 0
    assert not (tmp_path / "run").exists()


def test_a_rank_that_is_asked_for_has_its_number_in_its_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    found, _ = steps_of(tmp_path, ranks="0,3")
    assert {row.site.rank for row in found.rows} == {3}
    assert found.one(slot="world").digest == 4


def test_a_forward_that_raises_leaves_no_module_behind(tmp_path):
    class Fails(nn.Linear):
        def forward(self, x):
            if len(x) == 5:
                raise Broken("out of memory")
            return super().forward(x)

    model = nn.Sequential(nn.Linear(3, 3), Fails(3, 1))

    def loop(_):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in (2, 5, 2):
            try:
                model(torch.ones(rows, 3)).mean().backward()
            except Broken:
                continue
            optimizer.step()

    found = recorded(tmp_path / "run", loop)
    assert found.gaps() == []
    assert found.per_step(slot="metric.loss") == [1, 1]
    assert found.ops(step=2, module="Sequential", phase="forward") == []
    assert "aten.mean" in found.ops(step=2, module="", phase="forward")
