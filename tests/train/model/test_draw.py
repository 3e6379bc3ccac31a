"""Keyed draws: equal for equal names, different for any other, and nothing global is touched."""

import random as python_random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from model_helpers import DRAW, build, gradients, same_bits, tiny_config, tokens

from bitstep.train.draw import Draw
from bitstep.train.model.dropout import Dropout


def numbers(draw: Draw, name: str = "blocks.0.dropout") -> list[float]:
    return torch.rand(4, generator=draw.generator(name, "cpu")).tolist()


def test_equal_places_draw_equal_numbers_in_any_order() -> None:
    first = numbers(Draw(1, 2, 3))
    numbers(Draw(9, 9, 9))
    assert numbers(Draw(1, 2, 3)) == first


@pytest.mark.parametrize("other", [Draw(0, 2, 3), Draw(1, 3, 3), Draw(1, 2, 0), Draw(2, 1, 3)])
def test_another_seed_step_or_rank_draws_other_numbers(other: Draw) -> None:
    assert numbers(other) != numbers(Draw(1, 2, 3))


def test_another_name_draws_other_numbers() -> None:
    assert numbers(DRAW, "blocks.1.dropout") != numbers(DRAW, "blocks.0.dropout")


def test_a_known_draw_keeps_its_numbers() -> None:
    bits = torch.randint(2**31, (3,), generator=DRAW.generator("blocks.0.dropout", "cpu"))
    assert bits.tolist() == [1085587321, 1154978587, 2111679613]


def generator_states() -> tuple[object, ...]:
    return (
        torch.get_rng_state().tolist(),
        python_random.getstate(),
        repr(np.random.get_state()),
    )


def test_building_filling_and_training_touch_no_generator_of_the_process() -> None:
    before = generator_states()
    config = tiny_config(dropout=0.2)
    model = build(config, recompute=True)
    type(model)(config)  # On CPU too: no layer fills itself.
    model(tokens(config), DRAW)["total"].backward()
    assert generator_states() == before


def test_generators_of_the_process_do_not_reach_the_loss() -> None:
    config = tiny_config(dropout=0.2)
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        python_random.seed(seed)
        np.random.seed(seed)
        model = build(config)
        out = model(tokens(config), DRAW)
        out["total"].backward()
        results.append((out, gradients(model)))
    (first, grads), (second, other_grads) = results
    assert all(same_bits(first[name], second[name]) for name in first)
    assert all(same_bits(g, other_grads[name]) for name, g in grads.items() if g is not None)


def test_every_dropout_of_a_model_is_keyed_by_its_own_path() -> None:
    model = build(tiny_config(mtp_depth=2))
    names = {path: m.name for path, m in model.named_modules() if isinstance(m, Dropout)}
    assert len(names) == 8
    assert all(path == name for path, name in names.items())
    masks = {tuple(Dropout(0.5, name)(torch.ones(64), DRAW).tolist()) for name in names}
    assert len(masks) == 8


def test_dropout_zeroes_about_p_and_scales_the_rest() -> None:
    y = Dropout(0.25, "a")(torch.ones(100, 100), DRAW)
    assert set(y.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert 0.23 < (y == 0).float().mean().item() < 0.27


@pytest.mark.parametrize(
    "change", [lambda d: d.eval(), lambda d: setattr(d, "p", 0.0)], ids=["eval", "p = 0"]
)
def test_dropout_is_the_identity_when_off(change: Callable[[Dropout], object]) -> None:
    dropout = Dropout(0.25, "a")
    change(dropout)
    x = torch.ones(5)
    assert dropout(x, DRAW) is x


def test_dropout_keeps_bf16() -> None:
    y = Dropout(0.5, "a")(torch.ones(8, dtype=torch.bfloat16), DRAW)
    assert y.dtype == torch.bfloat16
    assert set(y.tolist()) == {0.0, 2.0}
