"""Names stay what they were: of modules, parameters, moments, buffers and plain attributes."""

import pytest
import torch
import torch.distributed as dist
from recording_fakes import data, recorded, small, train
from torch import nn
from torch.distributed.fsdp import fully_shard

from bitstep.observe.names import Names


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.table(ids))


class Biased(nn.Module):
    """Keeps tensors as plain attributes, alone and in containers."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 1)
        self.expert_bias = torch.zeros(3)
        self.banks = [torch.zeros(2), {"far": torch.zeros(2)}]

    def forward(self, x):
        self.expert_bias = self.expert_bias + 1
        self.banks[0] += 1
        self.banks[1]["far"] += 1
        return self.inner(x + self.expert_bias)


def names_of(recording, **fields):
    return [row.site.module for row in recording.of(**fields)]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_moments_go_by_the_name_of_their_parameter_not_by_position(tmp_path, kind):
    model = small()

    def program(_):
        train(model, kind(list(reversed(list(model.parameters()))), lr=0.1), steps=1)

    found = recorded(tmp_path / "run", program, "phase")
    names = ["Sequential.0.weight", "Sequential.0.bias", "Sequential.2.weight", "Sequential.2.bias"]
    assert names_of(found, step=1, slot="param", occurrence=1) == names
    for slot in ("state.exp_avg", "state.exp_avg_sq", "state.step"):
        assert sorted(names_of(found, step=1, slot=slot, occurrence=1)) == sorted(names)
        assert names_of(found, step=1, slot=slot, occurrence=0) == []


def test_what_an_optimizer_finds_is_what_the_step_before_left(tmp_path):
    model = small()

    def program(_):
        train(model, torch.optim.Adam(model.parameters(), lr=0.1), steps=3)

    found = recorded(tmp_path / "run", program, "phase")
    for slot in ("param", "state.exp_avg"):
        for step in (2, 3):
            before = found.of(step=step, slot=slot, phase="optimizer", occurrence=0)
            left = found.of(step=step - 1, slot=slot, phase="optimizer", occurrence=1)
            assert [row.digest for row in before] == [row.digest for row in left]
            after = found.of(step=step, slot=slot, phase="optimizer", occurrence=1)
            assert any(x.digest != y.digest for x, y in zip(before, after, strict=True))


def test_two_models_of_a_class_are_told_apart_by_the_order_of_their_first_calls(tmp_path):
    one, other = nn.Linear(3, 3), nn.Linear(3, 1)

    def program(_):
        optimizer = torch.optim.SGD([*other.parameters(), *one.parameters()], lr=0.1)
        for batch in data(2):
            other(one(batch)).mean().backward()
            optimizer.step()

    found = recorded(tmp_path / "run", program)
    # Their weights are what tells: the first is 3 x 3.
    shapes = {row.site.module: row.shape for row in found.of(step=2, slot="param", occurrence=1)}
    assert shapes["Linear.weight"] == (3, 3)
    assert shapes["Linear#1.weight"] == (1, 3)
    assert "aten.addmm" in found.ops(module="Linear#1", phase="forward", step=1)


def test_the_second_root_has_its_state_in_the_start_record(tmp_path):
    """It is known by its optimizer before it has ever been called."""
    one, other = nn.Linear(3, 3), nn.Linear(3, 1)

    def program(_):
        optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
        for batch in data(1):
            other(one(batch)).mean().backward()
            optimizer.step()

    found = recorded(tmp_path / "run", program, "phase")
    digests = {row.digest for row in found.of(step=0, slot="param")}
    assert len(digests) == 4


def test_tied_weights_have_one_name(tmp_path):
    torch.manual_seed(0)
    model = Tied()

    def program(_):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.tensor([1, 2])).mean().backward()
        optimizer.step()

    found = recorded(tmp_path / "run", program, "phase")
    assert names_of(found, step=1, slot="param", occurrence=1) == ["Tied.table.weight"]
    assert names_of(found, step=1, slot="grad", phase="optimizer") == ["Tied.table.weight"]


def test_a_parameter_that_is_replaced_keeps_its_name_and_the_new_bits_are_read(tmp_path):
    model = small()

    def program(_):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)
        model[0].weight = nn.Parameter(torch.full((4, 3), 0.5))
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)

    found = recorded(tmp_path / "run", program, "phase")
    rows = found.of(step=2, slot="param", phase="optimizer", occurrence=0)
    assert [row.site.module for row in rows][:2] == ["Sequential.0.weight", "Sequential.0.bias"]
    assert rows[0].digest == recorded_digest(torch.full((4, 3), 0.5))
    assert [row.site.module for row in rows].count("Sequential.0.weight") == 1


def recorded_digest(tensor):
    from bitstep.fingerprint import fingerprint

    return fingerprint(tensor).sum


def test_a_parameter_that_is_added_later_has_a_name(tmp_path):
    model = small()

    def program(_):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)
        model.append(nn.Linear(1, 1))
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)

    found = recorded(tmp_path / "run", program)
    assert "Sequential.3.weight" in names_of(found, step=2, slot="param", occurrence=1)
    assert "aten.addmm" in found.ops(step=2, module="Sequential.3")


def test_tensors_that_hang_on_modules_as_attributes_are_state(tmp_path):
    model = Biased()

    def program(_):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)

    found = recorded(tmp_path / "run", program, "phase")
    assert names_of(found, step=1, slot="attr") == [
        "Biased.expert_bias",
        "Biased.banks.0",
        "Biased.banks.1.far",
    ]
    first, second = (
        {row.site.module: row.digest for row in found.of(step=step, slot="attr")} for step in (1, 2)
    )
    assert all(first[name] != second[name] for name in first)


def test_buffers_are_state(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))

    def program(_):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)

    found = recorded(tmp_path / "run", program, "phase")
    assert names_of(found, step=1, slot="buffer", occurrence=1) == [
        "Sequential.1.running_mean",
        "Sequential.1.running_var",
        "Sequential.1.num_batches_tracked",
    ]
    assert found.one(step=1, slot="root.buffers") != found.one(step=0, slot="root.buffers")


def test_a_compiled_module_is_named_as_what_it_compiles():
    model = small()
    names = Names()
    wrapper = torch._dynamo.eval_frame.OptimizedModule(model, lambda fn: fn)
    assert names.root(wrapper) == "Sequential"
    assert names.path(model) == "Sequential"
    assert names.path(model[2]) == "Sequential.2"
    assert [name for name, _ in names.parameters()][:1] == ["Sequential.0.weight"]


def test_the_parameters_of_a_model_in_ddp_have_their_own_names(tmp_path):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = DistributedDataParallel(small())
        found = recorded(
            tmp_path / "run",
            lambda _: train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1),
        )
    finally:
        dist.destroy_process_group()
    assert names_of(found, step=1, slot="param", occurrence=1)[0] == "Sequential.0.weight"
    assert "aten.addmm" in found.ops(step=1, module="Sequential.0")
    assert {row.site.module for row in found.of(step=1, op="", slot="in.0")} == {
        "Sequential", "Sequential.0", "Sequential.1", "Sequential.2",
    }  # fmt: skip


def test_optimizers_and_settings_have_their_group_and_bits(tmp_path):
    model = small()

    def program(_):
        groups = [
            {"params": model[0].parameters(), "lr": 0.25},
            {"params": model[2].parameters(), "betas": (0.5, 0.75)},
        ]
        train(model, torch.optim.AdamW(groups, lr=torch.tensor(0.125), weight_decay=0), steps=1)

    found = recorded(tmp_path / "run", program, "step")
    assert found.value(step=1, module="group0", slot="args.lr", op="AdamW") == 0.25
    assert found.value(step=1, module="group1", slot="args.lr", op="AdamW") == 0.125
    assert found.value(step=1, module="group1", slot="args.betas.1") == 0.75
    assert found.value(step=1, module="group1", slot="args.weight_decay") == 0


def test_a_batch_goes_by_the_names_of_its_arguments(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 1)

        def forward(self, x, *, extra, nested):
            return self.inner(x) + extra + nested["a"][0]

    model = Net()

    def program(_):
        x, one = torch.ones(2, 3), torch.ones(1)
        model(x, extra=one, nested={"a": [one + 1], "b": 3}).mean().backward()

    found = recorded(tmp_path / "run", program, "phase")
    rows = {row.site.module: row.digest for row in found.of(step=1, slot="batch")}
    assert list(rows) == ["0", "extra", "nested.0", ""]
    assert rows["nested.0"] == recorded_digest(torch.full((1,), 2.0))


def test_a_loss_that_is_made_anew_each_step_has_one_name_and_no_batch(tmp_path):
    model = small()

    def program(_):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in data(3):
            nn.MSELoss()(model(batch), torch.zeros(2, 1)).backward()
            optimizer.step()

    found = recorded(tmp_path / "run", program)
    assert all("aten.mse_loss" in found.ops(step=step, module="MSELoss") for step in (1, 2, 3))
    assert found.per_step(slot="batch", module="") == [1, 1, 1]


def test_modules_on_a_plain_list_have_names_of_their_own(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(3, 3), nn.Linear(3, 1)]

        def forward(self, x):
            return nn.ReLU()(self.layers[1](self.layers[0](x)))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), Net())
    weights = [p for layer in (model, *model[1].layers) for p in layer.parameters()]

    def program(_):
        optimizer = torch.optim.SGD(weights, lr=0.1)
        for batch in data(2):
            model(batch).mean().backward()
            optimizer.step()

    found = recorded(tmp_path / "run", program)
    assert names_of(found, step=2, slot="param", occurrence=1)[2::2] == [
        "Sequential.1.Linear.weight",
        "Sequential.1.Linear#1.weight",
    ]
    assert found.ops(step=2, module="Sequential.1", phase="forward")[:1] == ["aten.relu"]


def test_the_state_that_the_last_step_leaves_is_read_when_its_function_has_returned(tmp_path):
    def program(_):
        model = small()
        train(model, torch.optim.Adam(model.parameters(), lr=0.1), steps=2)

    found = recorded(tmp_path / "run", program, "phase")
    for slot in ("param", "state.exp_avg"):
        assert found.per_step(slot=slot, phase="optimizer", occurrence=1) == [4, 4]


def test_the_moments_that_a_resumed_program_loads_are_in_its_start_record(tmp_path):
    model = small()
    before = torch.optim.Adam(model.parameters(), lr=0.1)
    train(model, before, steps=1)

    def program(_):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        optimizer.load_state_dict(before.state_dict())
        train(model, optimizer, steps=1)

    found = recorded(tmp_path / "run", program, "phase")
    assert len(names_of(found, step=0, slot="state.exp_avg")) == 4
    assert found.one(step=0, slot="root.optimizer") != found.one(step=1, slot="root.optimizer")


def test_a_name_that_is_no_unicode_is_recorded_by_its_escapes(tmp_path):
    model = small()
    model.register_parameter("\ud800", nn.Parameter(torch.ones(2)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = recorded(tmp_path / "run", lambda recorder: train(model, optimizer))
    assert "Sequential.\\ud800" in {row.site.module for row in found.of(slot="param")}


def test_names_are_made_anew_when_keys_holders_or_ties_change():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    names = Names()
    names.root(model)
    first, second = model
    before = (
        "Sequential.0.weight",
        "Sequential.0.bias",
        "Sequential.1.weight",
        "Sequential.1.bias",
    )
    assert names.parameters().names == before
    model[1].weight = nn.Parameter(torch.zeros(2, 2))
    assert names.parameters().names == before
    assert names.parameters().tensors[2] is second.weight
    second.weight = first.weight
    assert names.parameters().names == (*before[:2], before[3])
    first.bias = None
    assert names.parameters().names == (before[0], before[3])
    first.register_parameter("heavy", first._parameters.pop("weight"))
    assert names.parameters().names == ("Sequential.0.heavy", before[3])
    second._parameters["bias"], first._parameters["bias"] = None, second.bias
    assert names.parameters().names == ("Sequential.0.bias", "Sequential.0.heavy")


def test_an_attribute_that_hooks_or_containers_of_torch_hold_is_none():
    model = nn.Linear(2, 2)
    names = Names()
    names.root(model)
    assert list(names.attributes()) == []
    model.tied, model.bank = model.weight, (torch.ones(1),)
    assert [name for name, _ in names.attributes()] == ["Linear.bank.0"]


def test_after_an_evaluation_the_state_is_still_that_of_the_shards(tmp_path):
    """FSDP2 keeps what it gathered for a backward that does not come."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = small()
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def program(recorder):
        for step, batch in enumerate(data(2), 1):
            recorder.step(step)  # So that what a step leaves is read after its evaluation.
            model.train()
            model(batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                model(batch)
        assert type(model[0].weight) is nn.Parameter

    found = recorded(tmp_path / "run", program, "phase")
    dist.destroy_process_group()
    names = ["Sequential.0.weight", "Sequential.0.bias", "Sequential.2.weight", "Sequential.2.bias"]
    for step in (1, 2):
        after = found.of(step=step, phase="optimizer", occurrence=1)
        for slot in ("param", "state.exp_avg"):
            assert [row.site.module for row in after if row.site.slot == slot] == names
            assert all(row.place is not None for row in after if row.site.slot == slot)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
@pytest.mark.parametrize("level", ["step", "op"])
def test_what_hangs_on_a_scripted_module_has_its_name(tmp_path, level):
    model = nn.Sequential(
        torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.ReLU())), nn.Linear(4, 1)
    )

    def program(_):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=3)

    found = recorded(tmp_path / "run", program, level)
    assert found.steps == [1, 2, 3]
    assert found.gaps() == []
    if level == "op":
        names = [
            "Sequential.0.0.weight",
            "Sequential.0.0.bias",
            "Sequential.1.weight",
            "Sequential.1.bias",
        ]
        assert names_of(found, step=3, slot="param", occurrence=1) == names
