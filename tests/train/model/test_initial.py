"""First values: a function of the name, the shape and the seed."""

import math

import pytest
import torch
from model_helpers import build, same_bits, tiny_config
from torch.nn import functional as F

from bitstep.train.model.hybrid import HybridModel
from bitstep.train.model.initial import initialise

CONFIG = tiny_config(init_std=0.05)


def test_every_parameter_and_buffer_of_a_model_has_a_rule() -> None:
    config = tiny_config(pattern="M*E-ME", mtp_depth=2, mtp_pattern="M*E-")
    model = build(config)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        value = initialise(name, tensor.shape, config, seed=7)
        assert value.dtype == torch.float32
        assert value.shape == tensor.shape
        assert bool(value.isfinite().all())


def test_values_do_not_depend_on_what_was_drawn_before() -> None:
    names = ["blocks.0.mixer.project.weight", "head.weight"]
    forward = [initialise(name, (5, 6), CONFIG, 1) for name in names]
    backward = [initialise(name, (5, 6), CONFIG, 1) for name in reversed(names)]
    assert same_bits(forward[0], backward[1])
    assert same_bits(forward[1], backward[0])
    assert not torch.equal(forward[0], forward[1])


def test_another_seed_gives_other_values() -> None:
    assert not torch.equal(*(initialise("head.weight", (5, 6), CONFIG, s) for s in (1, 2)))


def test_known_values_stay() -> None:
    value = initialise("head.weight", (2, 2), CONFIG, 7)
    assert value.view(torch.int32).tolist() == [
        [-1141274992, 1007560808],
        [1022364023, -1141502528],
    ]


def test_matrices_are_normal_with_the_deviation_of_the_recipe() -> None:
    value = initialise("blocks.0.mixer.up.weight", (400, 300), CONFIG, 1)
    assert value.std().item() == pytest.approx(0.05, rel=0.02)
    assert value.mean().item() == pytest.approx(0, abs=0.001)


@pytest.mark.parametrize(
    "name", ["mixer.out", "mixer.down", "mixer.shared.down", "mixer.experts.3.down"]
)
def test_what_writes_to_the_residual_stream_is_smaller(name: str) -> None:
    value = initialise(f"blocks.1.{name}.weight", (400, 300), CONFIG, 1)
    assert value.std().item() == pytest.approx(0.05 / math.sqrt(8), rel=0.02)


def test_norms_and_d_are_ones_and_biases_zeros() -> None:
    for name in ("norm.weight", "blocks.0.mixer.norm.weight", "mtp.0.norm_token.weight"):
        assert initialise(name, (3,), CONFIG, 1).tolist() == [1.0] * 3
    assert initialise("blocks.0.mixer.D", (2,), CONFIG, 1).tolist() == [1.0] * 2
    for name in ("blocks.0.mixer.conv_bias", "blocks.2.mixer.router.expert_bias"):
        assert initialise(name, (3,), CONFIG, 1).tolist() == [0.0] * 3


def test_step_sizes_start_between_their_limits_and_decay_rates_at_the_head_number() -> None:
    steps = F.softplus(initialise("blocks.0.mixer.dt_bias", (2000,), CONFIG, 1).double())
    assert 0.00099 < steps.min().item() < 0.0012
    assert 0.09 < steps.max().item() < 0.1001
    assert steps.log().mean().item() == pytest.approx(math.log(0.01), abs=0.1)
    rates = initialise("blocks.0.mixer.A_log", (4,), CONFIG, 1).exp()
    torch.testing.assert_close(rates, torch.tensor([1.0, 2.0, 3.0, 4.0]))


def test_the_convolution_is_uniform_within_the_inverse_root_of_its_width() -> None:
    value = initialise("blocks.0.mixer.conv_weight", (500, 4), CONFIG, 1)
    assert 0.49 < value.max().item() <= 0.5
    assert -0.5 <= value.min().item() < -0.49


def test_values_are_aligned_as_torch_aligns() -> None:
    assert initialise("head.weight", (7, 7), CONFIG, 1).data_ptr() % 64 == 0


def test_a_name_without_a_rule_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match=r"no rule draws blocks\.0\.mystery"):
        initialise("blocks.0.mystery", (3,), CONFIG, 1)


def test_a_model_on_meta_holds_no_memory() -> None:
    with torch.device("meta"):
        model = HybridModel(CONFIG)
    assert all(t.is_meta for t in [*model.parameters(), *model.buffers()])
