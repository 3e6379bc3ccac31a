"""Where only roots matter no hook runs inside of one, and nothing is lost by that."""

import pytest
import torch
from recording_fakes import recorded, small, train
from torch import nn

from bitstep.observe.control import NAME

modules = torch.nn.modules.module
TABLES = (modules._global_forward_pre_hooks, modules._global_forward_hooks)


class Watching(nn.Module):
    """Notes how many global hooks there are in each forward; fails in one, if asked to."""

    def __init__(self, fails_in=None):
        super().__init__()
        self.inner = small()
        self.hooks = []
        self.late = []
        self._fails_in = fails_in

    def forward(self, x):
        self.hooks.append(sum(map(len, TABLES)))
        if len(self.hooks) - 1 == self._fails_in:
            raise ValueError("no forward")
        for module in self.late:
            x = x + module(x)
        return self.inner(x)


def trained(model, steps, before=lambda *_: None):
    def program(_):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(1, steps + 1):
            before(step, optimizer)
            train(model, optimizer, steps=1)

    return program


def bits(recording):
    """What every level has."""
    slots = ("root", "root.params", "root.grads", "root.optimizer", "batch", "metric.loss")
    return [
        (row.site.step, row.site.phase, row.site.slot, row.digest)
        for row in recording.rows
        if row.site.slot in slots and row.site.module == ""
    ]


@pytest.mark.parametrize(
    ("level", "hooks"),
    [("step", [2, 0, 0]), ("phase", [2, 0, 0]), ("module", [2, 2, 2]), ("op", [2, 2, 2])],
)
def test_after_the_first_step_no_hook_is_inside_of_a_root(tmp_path, level, hooks):
    model = Watching()
    found = recorded(tmp_path / "run", trained(model, 3), level)
    assert model.hooks == hooks
    assert found.per_step(slot="batch", module="") == [1, 1, 1]
    assert not any(map(len, TABLES))


def test_a_root_that_fails_leaves_every_module_hooked(tmp_path):
    model = Watching(fails_in=1)

    def program(_):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer, steps=1)
        with pytest.raises(ValueError, match="no forward"):
            model(torch.ones(2, 3))
        assert sum(map(len, TABLES)) == 2
        train(model, optimizer, steps=2)

    found = recorded(tmp_path / "run", program, "step")
    assert model.hooks == [2, 0, 0, 0]
    assert not model._forward_hooks
    assert found.steps == [1, 2, 3]


def test_a_recording_that_ends_in_a_forward_leaves_no_hook(tmp_path):
    class Ending(Watching):
        def forward(self, x):
            result = super().forward(x)
            if len(self.hooks) == 2:
                recorder.detach()
            return result

    model = Ending()
    recorder = None

    def program(given):
        nonlocal recorder
        recorder = given
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=3)

    recorded(tmp_path / "run", program, "step")
    assert model.hooks == [2, 0, 0]
    assert not any(map(len, TABLES))
    assert not model._forward_hooks


@pytest.mark.parametrize("where", ["on the root", "trained"])
def test_modules_that_come_later_have_the_names_that_every_level_gives_them(tmp_path, where):
    def found(level):
        torch.manual_seed(0)
        model = Watching()

        def add(step, optimizer):
            if step == 3:
                late = nn.Linear(3, 3)
                if where == "on the root":
                    model.more = late
                model.late.append(late)
                if where == "trained":
                    optimizer.add_param_group({"params": list(late.parameters())})

        return recorded(tmp_path / level, trained(model, 5, add), level)

    step, module = found("step"), found("module")
    assert bits(step) == bits(module)


def test_what_hangs_nowhere_is_untrained_and_comes_late_has_no_name_at_levels_without_modules(
    tmp_path,
):
    """The price, as it is: at level `module` its forward names it."""

    def found(level):
        torch.manual_seed(0)
        model = Watching()

        def add(step, _):
            if step == 3:
                model.late.append(nn.Linear(3, 3))

        return recorded(tmp_path / level, trained(model, 4, add), level)

    step, module = found("step"), found("module")
    unequal = {b[0] for a, b in zip(bits(step), bits(module), strict=True) if a != b}
    assert unequal == {3, 4}


def test_a_level_that_rises_has_the_rows_of_every_module(tmp_path):
    model = Watching()

    def rise(step, _):
        if step == 3:
            (tmp_path / "run" / NAME).write_text('level = "module"\nfrom_step = 4\nto_step = 5\n')

    found = recorded(tmp_path / "run", trained(model, 5, rise), "step")
    assert model.hooks == [2, 0, 0, 2, 0]
    assert found.per_step(module="Watching.inner.0", slot="out.0") == [0, 0, 0, 1, 0]


def test_another_global_hook_is_called_for_every_module_as_before(tmp_path):
    called = []
    handle = modules.register_module_forward_hook(lambda module, *_: called.append(type(module)))
    model = Watching()
    try:
        recorded(tmp_path / "run", trained(model, 3), "step")
    finally:
        handle.remove()
    assert model.hooks == [3, 3, 3]
    assert called == [nn.Linear, nn.ReLU, nn.Linear, nn.Sequential, Watching] * 3


class Region(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = small()

    def forward(self, x):
        return self.layers(x).sin()


class Tree(nn.Module):
    """Calls itself for its leaves."""

    def __init__(self):
        super().__init__()
        self.at_leaf, self.at_node = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, depth=2):
        if depth == 0:
            return self.at_leaf(x)
        return self.at_node(self(x, depth - 1)) + self(x, depth - 1)


def test_a_root_that_calls_itself_is_one_root(tmp_path):
    def found(level):
        torch.manual_seed(0)
        return recorded(tmp_path / level, trained(Tree(), 3), level)

    step, module = found("step"), found("module")
    assert bits(step) == bits(module)
    assert step.per_step(slot="batch", module="") == [1, 1, 1]


@pytest.mark.parametrize(("first", "hooks"), [(1, [2, 2, 2, 2]), (3, [2, 0, 0, 0])])
def test_a_region_that_is_compiled_is_compiled_once(tmp_path, first, hooks):
    """Its guards hold the hooks that it met."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    model = Watching()
    model.inner = Region()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    def compile_in(step, _):
        if step == first:
            model.inner.compile(backend=backend)

    recorded(tmp_path / "run", trained(model, 4, compile_in), "step")
    assert model.hooks == hooks
    assert len(graphs) == 1
