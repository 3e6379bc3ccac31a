"""A step of training: what its bits depend on, and what they do not."""

import random

import numpy as np
import pytest
import torch
from engine_fakes import tiny_engine, write_corpus

from bitstep.faults import Fault
from bitstep.train.evaluate import evaluate
from bitstep.train.schedule import learning_rate
from bitstep.train.step import state_roots, train_step


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def roots(engine, steps=3, between=lambda engine: None):
    results = []
    for _ in range(steps):
        between(engine)
        results.append(train_step(engine).roots)
    return results


def test_two_engines_have_the_same_bits_at_every_step(folder):
    first, second = tiny_engine(folder), tiny_engine(folder)
    assert state_roots(first) == state_roots(second)
    for _ in range(3):
        assert train_step(first) == train_step(second)


def test_every_stream_moves_in_every_step(folder):
    engine = tiny_engine(folder)
    before = state_roots(engine)
    after = train_step(engine).roots
    assert {stream for stream in before if before[stream] == after[stream]} == set()


def test_each_position_advances_by_one_step_of_its_own(folder):
    engine = tiny_engine(folder)
    rates = [train_step(engine).metrics["lr"] for _ in range(3)]
    schedule, peak = engine.recipe.schedule, engine.recipe.optimizer.lr
    assert rates == [peak * learning_rate(position, schedule, 6) for position in range(3)]
    assert len(set(rates)) > 1
    assert engine.state.values == {
        "schedule": {"position": 3, "updates": 3},
        "random": {"seed": 7, "counter": 3},
        "data": {"position": 3 * 4},
        "step": {"step": 3},
    }


def test_another_seed_gives_other_bits(folder):
    assert roots(tiny_engine(folder), 1) != roots(tiny_engine(folder, "run.seed=8"), 1)


def test_a_wall_clock_seed_gives_other_bits_each_time(folder):
    fault = Fault("wall-clock-seed")
    first, second = (tiny_engine(folder, fault=fault) for _ in range(2))
    assert state_roots(first)["parameters"] != state_roots(second)["parameters"]


def test_evaluating_changes_no_bit_of_training(folder):
    plain = roots(tiny_engine(folder))
    assert roots(tiny_engine(folder, "run.eval_every=1"), between=evaluate) == plain
    twice = tiny_engine(folder, "run.eval_every=1")
    assert roots(twice, between=lambda engine: (evaluate(engine), evaluate(engine))) == plain


def test_an_evaluation_has_the_same_value_each_time_and_moves_with_training(folder):
    engine = tiny_engine(folder, "run.eval_every=1")
    first = evaluate(engine)
    assert evaluate(engine) == first
    train_step(engine)
    assert evaluate(engine) != first


def test_process_wide_generators_do_not_influence_training(folder):
    def perturb(engine):
        torch.rand(random.randrange(1, 9))
        np.random.rand(3)
        torch.manual_seed(random.randrange(99))

    assert roots(tiny_engine(folder), between=perturb) == roots(tiny_engine(folder))


def test_training_draws_nothing_from_process_wide_generators(folder):
    engine = tiny_engine(folder)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    train_step(engine)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_recomputation_changes_no_bit(folder, precision):
    chosen = f"run.precision={precision}"
    kept = roots(tiny_engine(folder, chosen), 2)
    assert roots(tiny_engine(folder, chosen, "run.recompute=true"), 2) == kept


def test_bfloat16_is_computed_and_not_only_named(folder):
    full = roots(tiny_engine(folder), 1)
    assert roots(tiny_engine(folder, "run.precision=bfloat16"), 1) != full


def test_masters_and_moments_are_float32_in_both_precisions(folder):
    engine = tiny_engine(folder, "run.precision=bfloat16")
    train_step(engine)
    assert {piece.tensor.dtype for piece in engine.state.pieces} == {torch.float32}


def test_a_step_records_every_loss_by_name(folder):
    result = train_step(tiny_engine(folder, "model.mtp_depth=2"))
    assert set(result.metrics) == {
        "loss", "load_balancing", "z_loss", "mtp_1", "mtp_2", "total", "grad_norm", "lr", "tokens",
    }  # fmt: skip
    assert result.metrics["tokens"] == 4 * 20
    assert len(result.leaf_losses) == len(result.batches) == len(result.randoms) == 4
    assert len({batch.sum for batch in result.batches}) == 4
    assert len({draw.sum for draw in result.randoms}) == 4


def test_the_loss_of_a_step_is_the_exact_mean_over_logical_ranks(folder):
    from fractions import Fraction

    result = train_step(tiny_engine(folder))
    exact = sum(map(Fraction, result.leaf_losses)) / 4
    assert result.metrics["loss"] == float(exact)


def test_the_expert_bias_moves_away_from_the_busy_experts(folder):
    engine = tiny_engine(folder, "model.bias_rate=0.25")
    (bias,) = engine.model.expert_biases()
    assert bias.tolist() == [0.0, 0.0, 0.0]
    train_step(engine)
    assert set(bias.tolist()) <= {-0.25, 0.0, 0.25}
    assert bias.abs().sum() > 0


def test_a_step_can_name_its_documents(folder):
    engine = tiny_engine(folder)
    position = engine.state.values["data"]["position"]
    named = engine.training_data.documents(position, 4)
    assert len(named) == 4
    assert all(path.startswith("document-") for row in named for path in row)


def test_the_loss_falls(folder):
    engine = tiny_engine(folder, "run.steps=40", "optimizer.lr=0.01")
    losses = [train_step(engine).metrics["loss"] for _ in range(40)]
    assert losses[-1] < losses[0] - 1
