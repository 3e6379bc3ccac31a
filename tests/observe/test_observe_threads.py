"""One thread of one process is recorded; others are counted, or have recordings of their own."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import torch
from recording_fakes import Recording, data, recorded, small, train
from torch import nn

from bitstep import observe
from bitstep.fingerprint import fingerprint
from bitstep.observe import RecordOptions
from bitstep.observe.recorder import Recorder

ROOT = Path(__file__).parents[2]


def loop(model, steps=3):
    train(model, torch.optim.Adam(model.parameters(), lr=0.1), steps=steps)


def test_what_other_threads_do_is_counted_and_has_no_rows(tmp_path):
    def alone(_):
        model = small()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(3):
            train(model, optimizer, steps=1)

    def with_others(recorder):
        model = small()
        other = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        ready, stop = threading.Event(), threading.Event()

        def work():
            optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
            while not stop.is_set():
                other(torch.ones(1, 2)).sum().backward()
                nn.utils.clip_grad_norm_(other.parameters(), 1.0)
                optimizer.step()
                recorder.metric("foreign", 1.0)
                recorder.step(77)
                ready.set()

        worker = threading.Thread(target=work)
        worker.start()
        ready.wait()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(3):
            ready.clear()
            ready.wait()
            train(model, optimizer, steps=1)
        stop.set()
        worker.join()

    bare, found = recorded(tmp_path / "bare", alone), recorded(tmp_path / "run", with_others)
    assert found.steps == [1, 2, 3]
    assert found.gaps() == []
    threads = [found.value(step=step, slot="count.threads") for step in (0, 1, 2, 3)]
    assert sum(threads) >= 9
    for step in (1, 2, 3):
        assert [(row.site, row.digest) for row in found.of(step=step, phase="forward")] == [
            (row.site, row.digest) for row in bare.of(step=step, phase="forward")
        ]
        assert found.ops(step=step) == bare.ops(step=step)
    assert found.of(slot="metric.foreign") == []
    assert [row.digest for row in bare.of(slot="count.threads")] == [0, 0, 0, 0]


def test_a_recording_inside_of_a_recording_is_the_same_one(tmp_path):
    model = small()

    def program(recorder):
        with observe.record(tmp_path / "inner") as inner:
            assert inner is recorder
            loop(model)
        loop(model)

    found = recorded(tmp_path / "run", program, "step")
    assert found.complete
    assert found.per_step(slot="metric.loss") == [1] * 6
    assert not (tmp_path / "inner").exists()


def test_two_recorders_do_not_disturb_each_other(tmp_path):
    model = small()
    recorders = [Recorder(RecordOptions(tmp_path / name)).attach() for name in "ab"]
    loop(model)
    for recorder in recorders:
        recorder.close()
    first, second = (Recording(tmp_path / name) for name in "ab")
    assert first.roots == second.roots
    assert first.gaps() == []
    assert first.ops(step=1) != []
    assert set(second.gaps()) == {"operations are not recorded: another dispatch mode is on"}
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_model_and_an_optimizer_may_be_attached_inside_of_somebody_elses_trainer(tmp_path):
    model = small()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    recorder = Recorder(RecordOptions(tmp_path / "run", level="phase"))
    train(model, optimizer, steps=1)
    recorder.attach(model, optimizer)
    train(model, optimizer, steps=2)
    recorder.detach()
    weight = fingerprint(model[0].weight).sum
    train(model, optimizer, steps=1)
    recorder.attach(model, optimizer)
    train(model, optimizer, steps=1)
    recorder.close()
    found = Recording(tmp_path / "run")
    assert found.complete
    assert found.steps == [1, 2, 3]
    assert [row.site.module for row in found.of(step=0, slot="state.exp_avg")] == [
        "Sequential.0.weight", "Sequential.0.bias", "Sequential.2.weight", "Sequential.2.bias",
    ]  # fmt: skip
    assert found.per_step(slot="level") == [1, 1, 1]
    left = found.one(step=2, slot="param", occurrence=1, module="Sequential.0.weight")
    assert left.digest == weight, "what was done while nobody looked is not of step 2"


def test_what_is_recorded_may_die_once_we_are_detached(tmp_path):
    model = small()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    recorder = Recorder(RecordOptions(tmp_path / "run")).attach()
    train(model, optimizer, steps=1)
    recorder.detach()
    kept = list(map(weakref.ref, (model, optimizer, model[0].weight)))
    del model, optimizer
    gc.collect()
    assert [one() for one in kept] == [None] * 3
    recorder.close()


FORKS = """
import os, sys
import torch
from bitstep import observe
sys.path.insert(0, sys.argv[2])
from recording_fakes import small, train

def loop(steps):
    model = small()
    train(model, torch.optim.Adam(model.parameters(), lr=0.1), steps=steps)

with observe.record(sys.argv[1]) as recorder:
    if "before" in sys.argv:
        loop(2)
    child = os.fork()
    if child == 0:
        os.environ["RANK"] = "1"
        loop(3)
        recorder.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    loop(2)
"""


def forks(run, *words):
    subprocess.run(
        [sys.executable, "-c", FORKS, str(run), str(Path(__file__).parent), *words],
        check=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    found = Recording(run)
    assert found.damage == ()
    assert found.complete
    return found


def test_a_forked_child_leaves_the_trace_of_its_parent_alone(tmp_path):
    found = forks(tmp_path / "run", "before")
    assert found.steps == [1, 2, 3, 4]
    assert {row.site.rank for row in found.rows} == {0}


def test_a_child_that_is_forked_before_anything_is_recorded_has_its_own_trace(tmp_path):
    child, parent = forks(tmp_path / "run"), Recording(tmp_path / "run", "attempt-001")
    assert {row.site.rank for row in child.rows} == {1}
    assert {row.site.rank for row in parent.rows} == {0}
    assert child.per_step(slot="metric.loss") == [1, 1, 1]
    assert parent.per_step(slot="metric.loss") == [1, 1]


def test_a_batch_that_is_made_by_another_thread_is_seen_as_an_input(tmp_path):
    model, made = small(), []

    def program(_):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in data(2):
            worker = threading.Thread(target=lambda batch=batch: made.append(batch * 2))
            worker.start()
            worker.join()
            model(made[-1]).mean().backward()
            optimizer.step()

    found = recorded(tmp_path / "run", program)
    batches = [row.digest for row in found.of(slot="batch", module="0")]
    inputs = [row.digest for row in found.of(op="aten.addmm", slot="in.1", module="Sequential.0")]
    assert len(set(batches)) == 2
    assert batches == inputs
