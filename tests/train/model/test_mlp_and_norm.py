"""The two smallest parts, by hand."""

import torch
from model_helpers import fill, random, tiny_config
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHRMSNorm

from bitstep.train.model.mlp import MLP
from bitstep.train.model.norm import GatedRMSNorm, RMSNorm


def test_mlp_is_up_squared_relu_down() -> None:
    mlp = MLP(2, 3)
    with torch.no_grad():
        mlp.up.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
        mlp.down.weight.copy_(torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 1.0]]))
    y = mlp(torch.tensor([[3.0, 0.5], [-2.0, -1.0]]))
    assert y.tolist() == [[9.5, 0.0], [16.0, 4.0]]


def test_mlp_gradients_are_those_of_finite_differences() -> None:
    mlp = MLP(3, 5)
    fill(mlp, tiny_config(), "blocks.3.mixer.")
    x = random(2, 3, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(mlp.double(), (x,), fast_mode=True)


def test_norm_equals_transformers() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        ours, theirs = RMSNorm(16, 1e-5), NemotronHRMSNorm(16, 1e-5)
        with torch.no_grad():
            ours.weight.copy_(random(16, seed=1))
            theirs.weight.copy_(ours.weight)
        x = random(3, 16).to(dtype)
        assert ours(x).dtype == dtype
        torch.testing.assert_close(ours.to(dtype)(x), theirs.to(dtype)(x), rtol=1e-6, atol=1e-6)


def test_groups_are_normed_alone() -> None:
    norm = RMSNorm(4, 1e-12, groups=2)
    torch.nn.init.ones_(norm.weight)
    y = norm(torch.tensor([[3.0, 3.0, 0.5, -0.5]]))
    torch.testing.assert_close(y, torch.tensor([[1.0, 1.0, 1.0, -1.0]]))


def test_the_gate_multiplies_before_the_norm() -> None:
    norm = GatedRMSNorm(4, 1e-5, groups=2)
    torch.nn.init.ones_(norm.weight)
    x, gate = random(3, 4, seed=1), random(3, 4, seed=2)
    product = (x * torch.nn.functional.silu(gate)).view(3, 2, 2)
    scale = (product.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    torch.testing.assert_close(norm(x, gate), (product * scale).view(3, 4))


def test_norm_gradients_are_those_of_finite_differences() -> None:
    norm = GatedRMSNorm(4, 1e-5, groups=2).double()
    torch.nn.init.ones_(norm.weight)
    x, gate = (random(2, 4, seed=s, dtype=torch.float64).requires_grad_() for s in (1, 2))
    assert torch.autograd.gradcheck(norm, (x, gate), fast_mode=True)
