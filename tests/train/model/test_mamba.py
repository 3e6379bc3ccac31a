"""The Mamba-2 block against the mixer of transformers, with the same weights."""

import torch
from model_helpers import fill, random, tiny_config
from torch.nn import functional as F
from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from bitstep.train.model.config import ModelConfig
from bitstep.train.model.mamba import Mamba, convolve

# transformers wants expand * hidden = heads * head_dim.
SIZES = {"hidden": 12, "mamba_heads": 4, "mamba_head_dim": 6, "mamba_groups": 2}


def block(config: ModelConfig) -> Mamba:
    mamba = Mamba(config)
    fill(mamba, config, "blocks.0.mixer.")
    with torch.no_grad():  # Away from the ones and zeros that a fresh block starts with.
        mamba.norm.weight.copy_(1 + 0.1 * random(mamba.norm.weight.numel(), seed=3))
        mamba.D.copy_(random(config.mamba_heads, seed=4))
        mamba.conv_bias.copy_(random(mamba.conv_bias.numel(), seed=5))
        mamba.project.weight.mul_(20)
    return mamba


def reference(mamba: Mamba, config: ModelConfig) -> Mamba2Mixer:
    mixer = Mamba2Mixer(
        Mamba2Config(
            hidden_size=config.hidden,
            num_heads=config.mamba_heads,
            head_dim=config.mamba_head_dim,
            state_size=config.mamba_state,
            n_groups=config.mamba_groups,
            conv_kernel=config.conv_width,
            chunk_size=8,
            expand=2,
            layer_norm_epsilon=config.norm_eps,
            num_hidden_layers=1,
        ),
        layer_idx=0,
    )
    ours = dict(mamba.named_parameters())
    names = {
        "in_proj.weight": ours["project.weight"],
        "conv1d.weight": ours["conv_weight"].unsqueeze(1),
        "conv1d.bias": ours["conv_bias"],
        "dt_bias": ours["dt_bias"],
        "A_log": ours["A_log"],
        "D": ours["D"],
        "norm.weight": ours["norm.weight"],
        "out_proj.weight": ours["out.weight"],
    }
    mixer.load_state_dict({name: value.detach() for name, value in names.items()})
    return mixer


def test_equals_transformers_forward_and_backward() -> None:
    config = tiny_config(**SIZES)
    ours = block(config)
    theirs = reference(ours, config)
    x = random(2, 11, 12, seed=1).requires_grad_()
    y = x.detach().clone().requires_grad_()
    mine, other = ours(x), theirs(y)
    assert mine.abs().max() > 0.01
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
    weight = random(2, 11, 12, seed=2)
    (mine * weight).sum().backward()
    (other * weight).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.A_log.grad, theirs.A_log.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.dt_bias.grad, theirs.dt_bias.grad, rtol=1e-4, atol=1e-5)


def test_chunks_change_rounding_only() -> None:
    x = random(2, 11, 12, seed=1)
    outputs = [block(tiny_config(**SIZES, chunk=chunk))(x) for chunk in (2, 5, 64)]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(outputs[0], outputs[2], rtol=1e-5, atol=1e-6)


def test_the_convolution_is_that_of_torch() -> None:
    x, weight, bias = (random(2, 9, 6), random(6, 4, seed=1), random(6, seed=2))
    expected = F.conv1d(x.mT, weight.unsqueeze(1), bias, padding=3, groups=6)[..., :9].mT
    torch.testing.assert_close(convolve(x, weight, bias), expected)


def test_gradients_are_those_of_finite_differences() -> None:
    config = tiny_config(**SIZES, chunk=2)
    mamba = block(config).double()
    names, values = zip(*mamba.named_parameters(), strict=True)

    def run(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(mamba, dict(zip(names, parameters, strict=True)), (x,))

    x = random(1, 3, 12, seed=1, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(run, (x, *values), fast_mode=True)
