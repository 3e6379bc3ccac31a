import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from bitstep.errors import RecipeError
from bitstep.train.optimizer import AdamW, _power
from bitstep.train.recipe import OptimizerConfig

CONFIG = OptimizerConfig(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
COUNT = 80
LR = 3e-3


def numbers(seed, count=COUNT, scale=1.0):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) * scale


def trained(cuts=(), fused=False, steps=4):
    """Master and moments after some steps, as int32 bits, computed on pieces cut at `cuts`."""
    pieces = [piece.clone() for piece in torch.tensor_split(numbers(0), cuts)]
    masters = {str(index): piece for index, piece in enumerate(pieces)}
    optimizer = AdamW(masters, CONFIG, decayed=set(masters), fused=fused)
    for step in range(1, steps + 1):
        gradient = numbers(step, scale=10.0 ** (step - 2))
        optimizer.step(list(torch.tensor_split(gradient, cuts)), lr=LR, update=step)
    moments = optimizer.moments()
    return [
        torch.cat(list(tensors.values())).view(torch.int32)
        for tensors in (masters, moments["exp_avg"], moments["exp_avg_sq"])
    ]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_bits_do_not_depend_on_where_shards_are_cut():
    whole = trained()
    for cut in range(COUNT + 1):
        assert same(trained([cut]), whole), cut


def test_fused_bits_do_depend_on_where_shards_are_cut():
    whole = trained(fused=True)
    assert not all(same(trained([cut], fused=True), whole) for cut in range(COUNT + 1))


def test_each_operation_rounds_once_to_float32():
    master, moment, square = numbers(0).numpy().copy(), np.zeros(COUNT, "f4"), np.zeros(COUNT, "f4")
    f4 = np.float32
    for step in range(1, 5):
        gradient = numbers(step, scale=10.0 ** (step - 2)).numpy()
        moment = moment * f4(0.9) + gradient * f4(1.0 - 0.9)
        square = square * f4(0.95) + gradient * gradient * f4(1.0 - 0.95)
        root = np.sqrt(square) * f4(1.0 / math.sqrt(1.0 - _power(0.95, step))) + f4(1e-8)
        master = master * f4(1.0 - LR * 0.1)
        master = master - moment / root * f4(LR / (1.0 - _power(0.9, step)))
    for ours, expected in zip(trained(), (master, moment, square), strict=True):
        assert torch.equal(ours, torch.from_numpy(expected).view(torch.int32))


def test_it_is_adamw():
    ours, theirs = numbers(0).view(8, 10).clone(), torch.nn.Parameter(numbers(0).view(8, 10))
    optimizer = AdamW({"w": ours}, CONFIG, decayed={"w"})
    stock = torch.optim.AdamW([theirs], lr=LR, betas=CONFIG.betas, eps=1e-8, weight_decay=0.1)
    for step in range(1, 20):
        theirs.grad = numbers(step).view(8, 10)
        optimizer.step([theirs.grad], lr=LR, update=step)
        stock.step()
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_only_decayed_masters_shrink():
    masters = {"weight": torch.ones(2, 2), "bias": torch.ones(2)}
    optimizer = AdamW(masters, OptimizerConfig(weight_decay=0.5), decayed={"weight"})
    optimizer.step([torch.zeros(2, 2), torch.zeros(2)], lr=0.5, update=1)
    assert torch.equal(masters["weight"], torch.full((2, 2), 0.75))
    assert torch.equal(masters["bias"], torch.ones(2))


def test_moments_are_live_and_complete():
    """Masters, moments and the count of updates carry everything to the next update."""
    first, second = numbers(0).clone(), numbers(0).clone()
    one, two = (AdamW({"w": w}, CONFIG, decayed={"w"}) for w in (first, second))
    one.step([numbers(1)], lr=LR, update=1)
    second.copy_(first)
    for kind, tensors in one.moments().items():
        two.moments()[kind]["w"].copy_(tensors["w"])
    for optimizer in (one, two):
        optimizer.step([numbers(2)], lr=LR, update=2)
    assert torch.equal(first, second)
    two.moments()["exp_avg"]["w"].zero_()
    for optimizer in (one, two):
        optimizer.step([numbers(3)], lr=LR, update=3)
    assert not torch.equal(first, second)


def test_the_gradient_is_not_changed():
    gradient = numbers(1)
    AdamW({"w": numbers(0)}, CONFIG, decayed={"w"}).step([gradient], lr=LR, update=1)
    assert torch.equal(gradient, numbers(1))


def test_an_empty_part_is_allowed():
    masters = {"w": torch.zeros(0, 3), "v": torch.ones(1)}
    AdamW(masters, CONFIG, decayed={"w"}).step([torch.zeros(0, 3), torch.ones(1)], lr=1.0, update=1)
    assert masters["v"].item() == pytest.approx(0.0, abs=1e-6)


def test_powers_are_multiplied_out():
    assert _power(0.5, 10) == 2.0**-10
    assert (_power(0.95, 0), _power(0.95, 1), _power(0.95, 2)) == (1.0, 0.95, 0.95 * 0.95)
    assert _power(0.95, 1000) == pytest.approx(float(Fraction(0.95) ** 1000), rel=1e-12)
    assert _power(0.9, 10**6) == 0.0


def test_gradients_must_be_as_many_as_masters():
    with pytest.raises(ValueError, match="shorter"):
        AdamW({"w": torch.ones(1)}, CONFIG, decayed=()).step([], lr=LR, update=1)


def test_masters_of_another_dtype_are_refused():
    with pytest.raises(RecipeError, match="master w is bfloat16: masters must be float32"):
        AdamW({"w": torch.zeros(2, dtype=torch.bfloat16)}, CONFIG, decayed=())


@pytest.mark.parametrize(
    "values",
    [{"lr": 0.0}, {"lr": math.inf}, {"betas": (0.9, 1.0)}, {"eps": 0.0}, {"clip": 0.0}, {"x": 1}],
)
def test_other_settings_are_refused(values):
    with pytest.raises(ValidationError):
        OptimizerConfig(**values)


def test_clip_may_be_infinite():
    assert OptimizerConfig(clip=math.inf).clip == math.inf
