"""Operands in MXFP8 and NVFP4, and the linear layer that is made of them."""

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

from bitstep.train.draw import Draw
from bitstep.train.model.formats import (
    FORMATS,
    mxfp8,
    nvfp4,
    nvfp4_stochastic,
    round_stochastically,
)
from bitstep.train.model.quantized import QuantizedLinear, Rounding

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3 = np.array(
    [m * 2.0**-9 for m in range(8)]
    + [(8 + m) * 2.0 ** (e - 10) for e in range(1, 16) for m in range(8)][:-1]
)
DRAW = Draw(seed=1, counter=2, rank=3)
DRAWS = 1 << 24
"""How many values torch.rand has."""


def normal(*shape, seed=0, dtype=torch.bfloat16):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    # Magnitudes over many binades, so that blocks have scales of their own.
    return (values * torch.exp2(torch.arange(shape[0]) % 23 - 11.0).unsqueeze(1)).to(dtype)


def nearest(values, grid):
    """To the nearest of a grid in the order of its codes; of two equally near the even code."""
    upper = np.searchsorted(grid, abs(values)).clip(1, len(grid) - 1)
    below, above = abs(values) - grid[upper - 1], grid[upper] - abs(values)
    up = (above < below) | ((above == below) & (upper % 2 == 0))
    return np.copysign(grid[np.where(up, upper, upper - 1)], values)


def blocks_of(x, block):
    """float64 [rows, blocks, block], filled up with zeros."""
    values = x.double().numpy()
    values = np.pad(values, ((0, 0), (0, -values.shape[1] % block)))
    return values.reshape(len(values), -1, block)


def whole(blocks, width):
    return torch.from_numpy(blocks.reshape(len(blocks), -1)[:, :width])


@pytest.mark.parametrize("width", [64, 50, 7])
def test_mxfp8_is_what_its_definition_says(width):
    x = normal(40, width)
    blocks = blocks_of(x, 32)
    largest = abs(blocks).max(-1, keepdims=True)
    fraction, exponent = np.frexp(largest / 448.0)  # largest <= 448 x 2^exponent, none smaller
    scales = np.exp2(exponent - (fraction == 0.5))
    expected = whole(nearest(blocks / scales, E4M3) * scales, width)
    assert torch.equal(mxfp8(x).values.double(), expected)
    assert mxfp8(x).scale.item() == 1.0


@pytest.mark.parametrize("width", [64, 50, 7])
def test_nvfp4_is_what_its_definition_says(width):
    x = normal(40, width)
    blocks = blocks_of(x, 16)
    scale = np.float32(abs(blocks).max()) / np.float32(448 * 6)
    scales = (abs(blocks).max(-1, keepdims=True).astype(np.float32) / np.float32(6)) / scale
    scales = nearest(scales.clip(2.0**-6, 448), E4M3)
    # As the kernels do: one reciprocal of both scales, in float32.
    scaled = blocks.astype(np.float32) * ((1 / scale) / scales.astype(np.float32))
    expected = whole(nearest(scaled.clip(-6, 6), E2M1) * scales, width)
    assert torch.equal(nvfp4(x).values.double(), expected)
    assert nvfp4(x).scale.item() == scale


def test_operands_are_those_of_the_classes_of_torchao():
    x = normal(40, 64)
    theirs = MXTensor.to_mx(x, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
    assert torch.equal(mxfp8(x).values, theirs.dequantize(torch.float32))
    theirs = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=per_tensor_amax_to_scale(x.abs().max()))
    operand = nvfp4(x)
    assert torch.equal(operand.scale, theirs.per_tensor_scale)
    theirs.per_tensor_scale = None
    assert torch.equal(operand.values, theirs.dequantize(torch.float32))


def test_a_draw_in_the_middle_rounds_to_nearest_with_the_scales_of_torchao():
    x = normal(40, 50, dtype=torch.float32)
    middle = nvfp4_stochastic(x, torch.full_like(x, 0.5))
    assert torch.equal(middle.values, nvfp4(x).values)
    assert torch.equal(middle.scale, nvfp4(x).scale)
    lowest = nvfp4_stochastic(x, torch.zeros_like(x))
    assert not torch.equal(lowest.values, middle.values)


@pytest.mark.parametrize("value", [0.7, 2.3125, -5.7])
def test_stochastic_rounding_is_unbiased_over_all_draws(value):
    x = torch.tensor([value])
    exact = Fraction(x.item())
    draws = torch.arange(DRAWS, dtype=torch.float32) / DRAWS
    values, counts = round_stochastically(x, draws).unique(return_counts=True)
    assert {abs(v) for v in values.tolist()} <= set(E2M1)
    assert len(values) == 2
    total = sum(Fraction(v) * n for v, n in zip(values.tolist(), counts.tolist(), strict=True))
    assert total == exact * DRAWS


def test_below_one_half_it_is_off_by_less_than_one_draw():
    x = torch.tensor([0.1])
    draws = torch.arange(DRAWS, dtype=torch.float32) / DRAWS
    up = int((round_stochastically(x, draws) == 0.5).sum())
    assert 0 <= up - Fraction(x.item()) * 2 * DRAWS < 1


def test_a_value_of_the_format_is_never_moved():
    x = torch.tensor([*E2M1, *-E2M1], dtype=torch.float32)
    for draw in (0.0, 0.5, 1 - 2.0**-24):
        assert torch.equal(round_stochastically(x, torch.full_like(x, draw)), x)
    assert round_stochastically(torch.tensor([-0.0]), torch.zeros(1)).signbit().item()


def test_draws_of_torch_are_those_that_were_counted():
    draws = torch.rand(1000, generator=torch.Generator().manual_seed(0)) * DRAWS
    assert torch.equal(draws, draws.floor())
    assert draws.max() < DRAWS


@pytest.mark.parametrize("quantize", [mxfp8, nvfp4, lambda x: nvfp4_stochastic(x, x * 0)])
@pytest.mark.parametrize("value", [0.0, 1e-38])
def test_an_operand_of_zeros_or_next_to_nothing_stays_finite(quantize, value):
    x = torch.zeros(3, 40)
    x[1, 2] = value
    operand = quantize(x)
    assert torch.isfinite(operand.values * operand.scale).all()
    assert torch.equal(operand.values[0], torch.zeros(40))


@pytest.mark.parametrize("quantize", [mxfp8, nvfp4, lambda x: nvfp4_stochastic(x, x * 0)])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_is_not_lost(quantize, value):
    x = torch.ones(3, 40)
    x[1, 2] = value
    operand = quantize(x)
    assert not torch.isfinite(operand.values[1] * operand.scale).all()


def gradient(draw=DRAW, name="blocks.0.mixer.up", product="input-grad"):
    dy = normal(30, 40)
    return Rounding(FORMATS["nvfp4"], draw, name, keyed=True).gradient(dy, product).values


def test_a_gradient_is_rounded_by_its_key_and_nothing_else():
    first = gradient()
    torch.manual_seed(5)
    assert torch.equal(gradient(), first)
    others = [
        gradient(Draw(seed=2, counter=2, rank=3)),
        gradient(Draw(seed=1, counter=3, rank=3)),
        gradient(Draw(seed=1, counter=2, rank=4)),
        gradient(name="blocks.1.mixer.up"),
        gradient(product="weight-grad"),
    ]
    assert [torch.equal(first, other) for other in others] == [False] * 5


def exact(rows, columns, seed, factor):
    """Values that the formats hold exactly, both ways: every block has a largest value of 6."""
    codes = torch.randint(len(E2M1), (rows, columns), generator=torch.Generator().manual_seed(seed))
    signs = 1.0 - 2.0 * (codes.flip(0) % 2)
    values = torch.from_numpy(E2M1).float()[codes] * signs
    diagonal = torch.arange(rows).unsqueeze(1) % 16 == torch.arange(columns) % 16
    return torch.where(diagonal, 6.0, values) * factor


@pytest.mark.parametrize(("name", "factor"), [("mxfp8", 1.0), ("nvfp4", 448.0)])
def test_where_the_format_loses_nothing_all_three_products_are_those_of_a_linear_layer(
    name, factor
):
    x, dy = exact(48, 32, 1, factor), exact(48, 64, 3, factor)
    layer = QuantizedLinear(32, 64, FORMATS[name], "up")
    layer.draw = DRAW
    results = []
    for forward in (layer, lambda y: F.linear(y, layer.weight)):
        layer.weight.data, layer.weight.grad = exact(64, 32, 2, factor), None
        leaf = x.clone().requires_grad_()
        y = forward(leaf.view(4, 12, 32))
        y.backward(dy.view(4, 12, 64))
        results.append((y, leaf.grad, layer.weight.grad))
    for ours, plain in zip(*results, strict=True):
        assert torch.equal(ours, plain)


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_each_product_has_operands_quantized_along_what_it_sums_over(name):
    layer = QuantizedLinear(50, 70, FORMATS[name], "up")
    layer.weight.data, layer.draw = normal(70, 50, seed=1), DRAW
    x, dy = normal(30, 50, seed=2).requires_grad_(), normal(30, 70, seed=3)
    y = layer(x)
    y.backward(dy)

    def product(a, b):
        return ((a.values @ b.values.T) * (a.scale * b.scale)).bfloat16()

    quantize = FORMATS[name].nearest
    rounding = Rounding(FORMATS[name], DRAW, "up", keyed=True)
    weight, inputs = layer.weight.detach(), x.detach()
    assert torch.equal(y, product(quantize(inputs), quantize(weight)))
    assert torch.equal(x.grad, product(rounding.gradient(dy, "input-grad"), quantize(weight.T)))
    transposed = rounding.gradient(dy.T, "weight-grad")
    assert torch.equal(layer.weight.grad, product(transposed, quantize(inputs.T)))


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("tokens", [1, 9])
def test_results_and_gradients_have_the_shapes_and_dtypes_of_what_they_belong_to(name, tokens):
    layer = QuantizedLinear(20, 12, FORMATS[name], "up")
    layer.weight.data = normal(12, 20)
    layer.draw = DRAW
    x = normal(tokens, 20).requires_grad_()
    y = layer(x.unsqueeze(0))
    y.sum().backward()
    assert (y.shape, y.dtype) == ((1, tokens, 12), torch.bfloat16)
    assert (x.grad.shape, x.grad.dtype) == ((tokens, 20), torch.bfloat16)
    assert (layer.weight.grad.shape, layer.weight.grad.dtype) == ((12, 20), torch.bfloat16)


def test_a_layer_outside_of_its_block_says_so():
    with pytest.raises(AssertionError, match="up was called outside of its block"):
        QuantizedLinear(20, 12, FORMATS["nvfp4"], "up")(normal(3, 20))


def test_importing_torchao_prints_and_warns_nothing():
    code = (
        "import logging, bitstep.train.model.formats as formats; "
        "print(logging.getLogger('torchao').level, formats.MXTensor.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("0 MXTensor\n", "")
