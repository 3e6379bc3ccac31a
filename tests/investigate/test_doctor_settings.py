"""Workers, string hashing and start-up entropy: what bits follow, by a program that follows all."""

import sys
from pathlib import Path

import pytest

from bitstep.investigate.doctor.generators import unseeded
from bitstep.investigate.doctor.loaders import after_restore, of_iterators, of_workers
from bitstep.investigate.doctor.runs import Runs, attempts, differing_batches, first_difference
from bitstep.investigate.doctor.settings import of_hashing

PROGRAMS = Path(__file__).parents[1] / "programs"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shaken")
    return Runs([sys.executable, str(PROGRAMS / "shaken.py")], folder)


@pytest.fixture(scope="module")
def base(runs):
    return runs.base()


def only(run):
    return attempts(run)[0][0]


def test_samples_that_follow_the_number_of_workers_are_named_with_their_loader(runs, base):
    other = runs.workers()
    batches = differing_batches(only(base), only(other))
    assert batches == [("shaken.py:32", 1)]
    (found,) = of_workers(only(base), batches, first_difference(base, other))
    assert found.severity == "under a setting"
    assert found.what == "the samples of Augmented depend on the number of workers"
    assert "2 workers than with 0" in found.evidence
    assert "generator of torch" in found.why


def test_numpy_that_nobody_seeded_is_named_and_torch_is_not(runs, base):
    other = runs.entropy()
    found = list(unseeded(only(base), only(other), first_difference(base, other)))
    assert [(f.severity, f.what) for f in found] == [
        ("varies", "the generator of numpy is drawn from and nobody seeded it"),
        ("varies", "numpy.random.default_rng() is made without a seed"),
    ]
    assert found[1].where == "shaken.py:31"


UNSEEDED = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_torch_that_nobody_seeded_varies_and_is_named(tmp_path):
    runs = Runs([sys.executable, "-c", UNSEEDED], tmp_path)
    base, other = runs.base(), runs.entropy()
    assert first_difference(base, runs.again()) is None  # the control: entropy alone is another
    (found,) = unseeded(only(base), only(other), first_difference(base, other))
    assert (found.severity, found.what) == (
        "varies",
        "the generator of torch is drawn from and nobody seeded it",
    )
    assert found.fix == "call torch.manual_seed(SEED) before the model is made"


def test_an_order_that_follows_string_hashing_is_named(runs, base, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    (found,) = of_hashing(runs, base, only(base))
    assert found.severity == "varies"
    assert found.what == "the order of the optimizer's parameters follows string hashing"
    assert "Mixer." in found.where


def test_a_run_in_which_nothing_is_changed_has_the_same_bits(runs, base):
    assert first_difference(base, runs.again()) is None


def loader(**changes):
    return {
        "name": "train.py:3",
        "dataset": "Rows",
        "sampler": "SequentialSampler",
        "has_generator": False,
        "iterators": [],
        "is_alive": True,
        **changes,
    }


def test_a_loader_that_is_not_iterated_yet_is_told_of_as_one_that_will_draw():
    shuffled = loader(
        name="train.py:2",
        sampler="RandomSampler",
        iterators=[{"where": "train.py:5", "drew": ["torch"]}],
    )
    found = list(of_iterators({"loaders": [shuffled, loader()]}))
    assert "the order of Rows is drawn" in found[0].what
    assert "the order of train.py:2 and every later draw" in found[1].why
    assert found[1].evidence.startswith("source:")


def test_a_loader_with_a_generator_of_its_own_is_not_told_of():
    assert list(of_iterators({"loaders": [loader(has_generator=True)]})) == []


@pytest.mark.parametrize(("calls", "found"), [("restore iter", 1), ("iter restore", 0)])
def test_only_an_iterator_that_is_made_after_the_restore_is_told_of(calls, found):
    events = {
        "restore": {"call": "torch.set_rng_state", "argument": "a state", "where": "t.py:8"},
        "iter": {"call": "iter(DataLoader)", "argument": "", "where": "t.py:9", "drew": "torch"},
    }
    process = {"events": [events[call] for call in calls.split()], "events_before": 2}
    assert len(list(after_restore(process))) == found
