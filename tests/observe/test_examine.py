"""What an examined process sees of itself: leaves, variables, streams, and how it changes them."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from bitstep.errors import UsageError
from bitstep.observe.examine import Order, inventory
from bitstep.observe.examine.draws import advance, exact, state_of
from bitstep.observe.examine.leaves import flatten, leaf_of
from bitstep.observe.examine.loaders import digest
from bitstep.observe.examine.order import VARIABLE, read_order
from bitstep.observe.examine.walk import reachable
from bitstep.observe.names import Names
from bitstep.observe.optimizers import Optimizers
from bitstep.observe.program import Program


class Trainer:
    def __init__(self):
        self.seen = 3
        self.ema = [torch.ones(2), torch.ones(2)]
        self.draws = np.random.default_rng(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.bias = torch.arange(2.0)
        self.register_buffer("scale", torch.tensor([1.0, 2.0]), persistent=False)

    def forward(self, x):
        return self.inner(x) * self.scale + self.bias


def taken(model):
    names, optimizers = Names(), Optimizers()
    names.root(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    optimizers.add(optimizer)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return inventory.take(Program(names, optimizers), optimizers, [])


def test_an_order_is_read_from_the_environment_as_it_was_written(tmp_path):
    order = Order(folder=tmp_path, streams=("parameters",), workers="other", save_wait=2.5)
    environment = order.to_environment({"PYTHONPATH": "src"})
    assert read_order(environment) == order
    assert environment["PYTHONPATH"].endswith("examine/bootstrap:src")


@pytest.mark.parametrize("text", ["{", "[]", '{"folder": "x"}', '{"folder": "x", "streams": 3}'])
def test_what_is_no_order_is_an_error(text):
    with pytest.raises(UsageError, match="set by bitstep doctor alone"):
        read_order({VARIABLE: text})


def test_numbers_have_one_digest_whatever_holds_them():
    values = (2, 2.0, torch.tensor(2.0), np.float32(2))
    assert {leaf_of("", value).digest for value in values} == {"number 2"}


def test_tensors_differ_by_bits_dtype_and_shape():
    one = torch.tensor([1.0, 2.0])
    others = (-one, one.bfloat16(), one.reshape(2, 1), torch.tensor([2.0, 1.0]))
    assert len({leaf_of("", tensor).digest for tensor in (one, *others)}) == 5
    assert leaf_of("", one).digest == leaf_of("", one.clone()).digest


def test_the_state_of_pythons_generator_is_found_in_a_list_and_a_tuple():
    generator = random.Random(4)
    wanted = state_of("", generator).digest
    version, words, gauss = generator.getstate()
    for held in (generator.getstate(), [version, list(words), gauss]):
        assert wanted in {leaf.digest for leaf in flatten({"random": held})}


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.Generator().manual_seed(1),
        lambda: random.Random(1),
        lambda: np.random.RandomState(1),
        lambda: np.random.default_rng(1),
        lambda: np.random.Generator(np.random.MT19937(1)),
    ],
)
def test_every_kind_of_generator_is_read_and_moved_by_one_draw(make):
    generator, other = make(), make()
    assert exact(generator) == exact(other)
    advance(other)
    assert exact(generator) != exact(other)


def test_what_hangs_on_variables_is_found_by_its_path_and_can_be_changed():
    trainer = Trainer()
    count = 7
    things = {thing.path: thing for thing in reachable()}
    here = test_what_hangs_on_variables_is_found_by_its_path_and_can_be_changed.__name__
    assert things[f"{here}: trainer.seen"].value == 3
    assert things[f"{here}: trainer.ema.1"].value is trainer.ema[1]
    assert things[f"{here}: trainer.draws"].value is trainer.draws
    things[f"{here}: trainer.seen"].put(4)
    things[f"{here}: count"].put(8)
    assert (trainer.seen, count) == (4, 8)


def test_each_stream_of_a_module_and_its_optimizer_is_named():
    found = taken(Net())
    assert {
        "parameters",
        "gradients",
        "moments/momentum_buffer",
        "buffer/scale",
        "attribute/bias",
        "hyperparameter/lr",
        "random/torch",
        "random/python",
        "random/numpy",
    } <= set(found)
    assert [leaf.path for leaf in found["attribute/bias"].leaves] == ["Net.bias"]


@pytest.mark.parametrize("name", ["parameters", "buffer/scale", "attribute/bias", "random/torch"])
def test_perturbing_a_stream_changes_it_alone(name):
    model = Net()
    found = taken(model)
    held = {"parameters": model.inner.weight, "buffer/scale": model.scale}
    before = {key: exact_of(key, tensor) for key, tensor in held.items()}
    torch_before = exact(torch.default_generator)
    for change in found[name].changes:
        change()
    changed = {key for key, tensor in held.items() if exact_of(key, tensor) != before[key]}
    assert changed == ({name} & set(held))
    assert (exact(torch.default_generator) != torch_before) == (name == "random/torch")


def exact_of(name, tensor):
    return leaf_of(name, tensor)


def test_batches_are_compared_by_every_tensor_number_and_word_in_them():
    batch = {"ids": torch.arange(4), "names": ["a", "b"], "at": 3}
    same = {"ids": torch.arange(4), "names": ["a", "b"], "at": 3}
    others = ({**batch, "ids": torch.arange(4) + 1}, {**batch, "names": ["a", "c"]}, [batch, 1])
    assert digest(batch) == digest(same)
    assert digest(batch) not in {digest(other) for other in others}
