"""Backward work has the module and the microbatch of its forward; recomputation is told apart."""

import gc
import weakref

import pytest
import torch
from recording_fakes import recorded, small, train
from torch import nn
from torch.utils.checkpoint import checkpoint

from bitstep import observe


class Deep(nn.Module):
    """Two branches that share a layer, and work between modules."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.last(self.one(x).sigmoid() * self.two(self.one(x)))


def test_the_work_of_each_layer_in_backward_has_its_name(tmp_path):
    model = Deep()

    def program(_):
        model(torch.ones(2, 3)).mean().backward()

    found = recorded(tmp_path / "run", program)
    back = {
        module: found.ops(step=1, phase="backward", module=f"Deep.{module}").count("aten.mm")
        for module in ("one", "two", "last")
    }
    assert back == {"one": 2, "two": 2, "last": 2}
    between = found.ops(step=1, phase="backward", module="Deep")
    assert "aten.sigmoid_backward" in between
    assert "aten.sigmoid_backward" not in found.ops(phase="backward", module="Deep.two")


def test_microbatches_of_a_step_are_told_apart_in_backward(tmp_path):
    model = Deep()

    def program(_):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1, accumulate=3)

    found = recorded(tmp_path / "run", program)
    rows = found.of(step=1, op="aten.mm", slot="out.0", module="Deep.two", phase="backward")
    assert [row.site.microbatch for row in rows] == [0, 0, 1, 1, 2, 2]


def test_a_graph_that_is_kept_and_walked_twice_keeps_its_names(tmp_path):
    model = Deep()

    def program(_):
        loss = model(torch.ones(2, 3)).mean()
        loss.backward(retain_graph=True)
        loss.backward()

    found = recorded(tmp_path / "run", program)
    rows = found.of(step=1, op="aten.mm", slot="out.0", module="Deep.two", phase="backward")
    assert [row.site.occurrence for row in rows] == [0, 1, 2, 3]
    assert [row.digest for row in rows[:2]] == [row.digest for row in rows[2:]]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_has_its_pass_and_the_modules_of_its_forward(tmp_path, reentrant):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.block = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
            self.last = nn.Linear(3, 1)

        def forward(self, x):
            run = lambda y: self.block(y.sin())  # noqa: E731
            return self.last(checkpoint(run, x, use_reentrant=reentrant))

    model = Net()

    def program(_):
        model(torch.ones(2, 3, requires_grad=True)).mean().backward()

    found = recorded(tmp_path / "run", program)
    forward = found.of(op="aten.addmm", phase="forward", slot="out.0")
    again = found.of(op="aten.addmm", pass_="recompute", slot="out.0")
    assert [row.site.module for row in again] == [row.site.module for row in forward][: len(again)]
    assert [row.digest for row in again] == [row.digest for row in forward][: len(again)]
    assert len(again) >= 1
    assert {row.site.phase for row in again} == {"backward"}
    (sine,) = found.of(op="aten.sin", pass_="recompute", slot="out.0")
    assert sine.site.module == "Net"
    # What autograd itself does with what was recomputed is no recomputation.
    assert found.of(op="aten.mm", pass_="recompute") == []
    assert found.of(op="aten.mm", module="Net.block.0", phase="backward") != []
    assert found.steps == [1]
    assert found.per_step(slot="metric.loss") == [1]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_keeps_the_state_of_the_step_as_it_is(tmp_path, reentrant):
    """It draws again: with the generator where it was, and then puts that back."""
    torch.manual_seed(0)
    drop = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = drop

        def forward(self, x):
            return checkpoint(self.drop, x, use_reentrant=reentrant).sum()

    model = Net()

    def program(_):
        model(torch.ones(2, 3, requires_grad=True)).backward()

    found = recorded(tmp_path / "run", program)
    draws = [row for row in found.of(slot="rng", step=1) if row.site.op]
    assert [row.site.pass_ for row in draws] == ["primary", "recompute"]
    assert draws[0].digest == draws[1].digest


def test_module_level_has_inputs_outputs_and_gradients(tmp_path):
    model, seen = small(), []

    def program(_):
        hidden = []
        handle = model[0].register_forward_hook(lambda m, a, out: hidden.append(out))
        handle.remove()
        model(torch.ones(2, 3)).mean().backward()
        seen.append(model[2].weight.grad)

    found = recorded(tmp_path / "run", program, "module")
    forward = found.of(step=1, phase="forward")
    assert [(row.site.module, row.site.slot) for row in forward] == [
        ("Sequential", "in.0"),
        ("Sequential.0", "in.0"),
        ("Sequential.0", "out.0"),
        ("Sequential.1", "in.0"),
        ("Sequential.1", "out.0"),
        ("Sequential.2", "in.0"),
        ("Sequential.2", "out.0"),
        ("Sequential", "out.0"),
    ]
    gradients = {
        (row.site.module, row.site.slot): row
        for row in found.of(step=1, phase="backward")
        if row.site.slot.startswith("grad_")
    }
    assert set(gradients) == {
        ("Sequential", "grad_out.0"),
        ("Sequential.2", "grad_out.0"),
        ("Sequential.2", "grad_in.0"),
        ("Sequential.1", "grad_out.0"),
        ("Sequential.1", "grad_in.0"),
        ("Sequential.0", "grad_out.0"),
    }
    assert gradients["Sequential.2", "grad_in.0"].shape == (2, 4)
    assert [row.site.op for row in found.rows if row.site.op and row.site.slot == "in.0"] == []


@pytest.mark.parametrize("level", ["step", "phase", "module", "op"])
@pytest.mark.parametrize("backward", [True, False])
def test_nothing_of_a_finished_step_is_kept_alive(tmp_path, level, backward):
    """Neither outputs nor nodes of the graph, nor, when the next step has begun, the model."""
    kept = []

    def step(model, optimizer):
        out = model(torch.ones(2, 3))
        loss = out.mean()
        kept.extend((weakref.ref(out), weakref.ref(loss)))
        if backward:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    def whole():
        model = small()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(2):
            step(model, optimizer)
            gc.collect()
            assert [one() for one in kept] == [None] * len(kept)
        kept.extend(map(weakref.ref, (model, optimizer, model[0], model[0].weight)))

    with observe.record(tmp_path / "run", level=level):
        whole()
        model = small()
        model(torch.ones(2, 3)).mean().backward()
        gc.collect()
        assert [one() for one in kept] == [None] * len(kept)


def test_nothing_is_kept_alive_before_the_first_step(tmp_path):
    with observe.record(tmp_path / "run"):
        model = small()
        optimizer = torch.optim.Adam(model.parameters())
        with torch.no_grad():
            out = model(torch.ones(2, 3))
        kept = list(map(weakref.ref, (model, optimizer, out)))
        del model, optimizer, out
        gc.collect()
        assert [one() for one in kept] == [None] * 3


def test_a_gradient_of_a_gradient_belongs_to_the_module_that_it_is_of(tmp_path):
    model = Deep()

    def program(_):
        x = torch.ones(2, 3, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.square().sum().backward()

    found = recorded(tmp_path / "run", program)
    assert found.gaps() == []
    assert "aten.mm" in found.ops(step=1, phase="backward", module="Deep.two", microbatch=0)
    assert [row.site.microbatch for row in found.of(slot="metric.loss")] == [0, 1]
