import math
import random
import struct
from fractions import Fraction

import numpy as np
import pytest
import torch

from bitstep.errors import RecipeError
from bitstep.state.processes import Processes
from bitstep.train import norm_kernel
from bitstep.train.norm import _rounded_sqrt, clip_, exact_norm

ALONE = Processes(rank=0, world=1)


def norm_of(*tensors):
    return exact_norm(tensors, ALONE)


def wide(count, low=-149, high=127, seed=0):
    """float32 with exponents drawn evenly, denormals included."""
    generator = np.random.default_rng(seed)
    exponents = generator.integers(low, high + 1, count)
    numbers = np.ldexp(generator.uniform(-2, 2, count), exponents).astype(np.float32)
    return torch.from_numpy(np.where(np.isfinite(numbers), numbers, np.float32(1)))


def is_correctly_rounded(norm, square):
    """Whether no float64 is nearer to sqrt(square) than norm."""
    below = (Fraction(norm) + Fraction(math.nextafter(norm, 0.0))) / 2
    above = (Fraction(norm) + Fraction(math.nextafter(norm, math.inf))) / 2
    return below**2 <= square <= above**2


def defined_sum(tensor):
    """S and E of the definition, in rationals."""
    numbers = [Fraction(x) for x in tensor.double().flatten().tolist()]
    exponent = math.frexp(float(max(map(abs, numbers))))[1]
    scale = Fraction(2) ** (98 - 2 * exponent)
    return sum(math.floor(x * x * scale) for x in numbers), exponent


def limbs_of(tensor, exponent, add=norm_kernel.add_limbs):
    limbs = torch.zeros(4, dtype=torch.int64)
    add(tensor, exponent, limbs)
    return limbs.tolist()


def total(limbs):
    return (((limbs[0] << 32) + limbs[1]) << 49) + (limbs[2] << 32) + limbs[3]


HARD = {
    "normal": torch.randn(3000, generator=torch.Generator().manual_seed(1)),
    "every exponent": wide(3000),
    "denormal": wide(500, high=-127),
    "huge": wide(500, low=125),
    "one big, many small": torch.cat([torch.full((3000,), 1e-7), torch.tensor([1.0])]),
    "one": torch.tensor([1e-45]),
    "largest": torch.full((9000,), torch.finfo(torch.float32).max),
    "powers of two": 2.0 ** torch.arange(-149, 128, dtype=torch.float64).float(),
    "just below a power": torch.full((8193,), math.nextafter(1.0, 0.0)).float() - 2**-24,
    "odd mantissas": torch.full((8192,), 1.0 - 2**-24),
}


@pytest.mark.parametrize("name", HARD)
def test_the_norm_is_the_correctly_rounded_root_of_the_exact_sum(name):
    tensor = HARD[name]
    square = sum(Fraction(x) ** 2 for x in tensor.double().tolist())
    assert is_correctly_rounded(norm_of(tensor), square)


@pytest.mark.parametrize("name", HARD)
def test_the_limbs_hold_the_sum_of_the_definition(name):
    tensor = HARD[name]
    expected, exponent = defined_sum(tensor)
    assert total(limbs_of(tensor, -exponent)) == expected


@pytest.mark.parametrize("name", HARD)
def test_torch_ops_and_the_kernel_have_equal_limbs(name):
    tensor = HARD[name]
    exponent = defined_sum(tensor)[1]

    def add(tensor, exponent, limbs):
        norm_kernel._add_limbs_torch(tensor, 2.0 ** (49 + 2 * exponent), limbs)

    assert limbs_of(tensor, -exponent, add) == limbs_of(tensor, -exponent)


def test_torch_ops_and_the_kernel_agree_over_many_blocks():
    tensor = torch.randn(130 * norm_kernel.BLOCK + 5, generator=torch.Generator().manual_seed(2))
    by_torch = torch.zeros(4, dtype=torch.int64)
    norm_kernel._add_limbs_torch(tensor, 2.0 ** (49 - 6), by_torch)
    assert by_torch.tolist() == limbs_of(tensor, -3)


def test_a_full_block_of_the_largest_limbs_does_not_overflow():
    tensor = torch.full((norm_kernel.BLOCK,), 1.0 - 2**-24)
    assert total(limbs_of(tensor, 0)) == norm_kernel.BLOCK * (2**24 - 1) ** 2 * 2**50


def test_order_pieces_and_shapes_do_not_matter():
    tensor = torch.cat([HARD["every exponent"], HARD["normal"], torch.randn(20000)])
    expected = norm_of(tensor)
    shuffled = tensor[torch.randperm(tensor.numel())]
    assert norm_of(shuffled) == expected
    cuts = sorted(random.Random(3).sample(range(tensor.numel()), 40))
    assert norm_of(*torch.tensor_split(shuffled, cuts)) == expected
    assert norm_of(tensor[:25000].view(125, 200), tensor[25000:].clone()) == expected
    assert norm_of(tensor.repeat_interleave(2)[::2]) == expected


def test_a_transposed_part_has_the_norm_of_its_elements():
    matrix = torch.randn(40, 30)
    assert norm_of(matrix.t()) == norm_of(matrix) == norm_of(matrix.t().contiguous())


def test_known_values_are_exact():
    assert norm_of(torch.tensor([3.0, -4.0])) == 5.0
    assert norm_of(torch.tensor([1.0, 1.0])) == math.sqrt(2.0)
    assert norm_of(torch.tensor([1e-45])) == 2.0**-149
    assert norm_of(torch.full((1 << 16,), 0.5)) == 128.0


def test_a_root_just_off_the_middle_of_two_floats_is_rounded_to_its_side():
    below, middle, above = 2**53 << 17, (2**53 + 1) << 17, (2**53 + 2) << 17
    assert _rounded_sqrt(middle**2 - 1) == below
    assert _rounded_sqrt(middle**2) == below  # the even one
    assert _rounded_sqrt(middle**2 + 1) == above


@pytest.mark.parametrize("tensors", [[], [torch.zeros(0)], [torch.zeros(5), -torch.zeros(3)]])
def test_nothing_but_zeros_has_norm_zero(tensors):
    assert struct.pack("<d", exact_norm(tensors, ALONE)) == bytes(8)


def test_a_nan_anywhere_gives_nan_and_else_an_infinity_gives_inf():
    assert math.isnan(norm_of(torch.tensor([1.0, math.inf]), torch.tensor([-math.nan])))
    assert norm_of(torch.tensor([1.0, -math.inf])) == math.inf
    assert norm_of(torch.full((4,), torch.finfo(torch.float32).max)) == pytest.approx(6.8e38, 0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats_count_as_their_float32_values(dtype):
    tensor = torch.randn(5000).to(dtype)
    assert norm_of(tensor) == norm_of(tensor.float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_other_dtypes_are_refused_by_name(dtype):
    with pytest.raises(RecipeError, match=f"a gradient is {str(dtype)[6:]}: the norm is defined"):
        norm_of(torch.ones(3, dtype=dtype))


class TwoProcesses:
    """The second of two processes: the first one's numbers are known beforehand."""

    device = torch.device("cpu")

    def __init__(self, largest, limbs):
        self.largest, self.limbs = largest, torch.tensor(limbs)

    def max_int64(self, tensor):
        tensor.clamp_(min=self.largest)

    def sum_int64(self, tensor):
        tensor.add_(self.limbs)


def test_parts_of_other_processes_count_even_where_this_one_has_none():
    theirs, mine = HARD["normal"], HARD["normal"] * 0.001
    largest = norm_kernel.largest_bits(theirs)
    exponent = defined_sum(theirs)[1]
    other = TwoProcesses(largest, limbs_of(theirs, -exponent))
    assert exact_norm([mine], other) == norm_of(theirs, mine)
    assert exact_norm([], other) == norm_of(theirs)


def test_clipping_multiplies_each_element_once_by_a_float32():
    tensors = [torch.randn(1000), torch.randn(3, 5)]
    copies = [tensor.clone() for tensor in tensors]
    norm = norm_of(*tensors)
    coefficient = clip_(tensors, norm, 1.0)
    assert coefficient == float(np.float32(1.0 / (norm + 1e-6)))
    for tensor, copy in zip(tensors, copies, strict=True):
        assert torch.equal(tensor, copy * torch.tensor(coefficient, dtype=torch.float32))


@pytest.mark.parametrize(("norm", "max_norm"), [(0.0, 1.0), (0.5, 1.0), (7.0, math.inf)])
def test_a_small_norm_leaves_every_bit(norm, max_norm):
    tensors = [torch.tensor([1e-45, -0.0, 3.0])]
    before = tensors[0].view(torch.int32).tolist()
    version = tensors[0]._version
    assert clip_(tensors, norm, max_norm) == 1.0
    assert tensors[0].view(torch.int32).tolist() == before
    assert tensors[0]._version == version


def test_clipping_by_nan_makes_every_element_nan():
    tensors = [torch.ones(3), torch.zeros(2)]
    assert math.isnan(clip_(tensors, math.nan, 1.0))
    assert all(tensor.isnan().all() for tensor in tensors)


def test_clipping_by_inf_zeroes_what_is_finite():
    tensors = [torch.tensor([1.0, math.inf])]
    assert clip_(tensors, math.inf, 1.0) == 0.0
    assert tensors[0][0] == 0.0
    assert tensors[0][1].isnan()


def test_clipping_nothing_is_allowed():
    assert clip_([], 2.0, 1.0) < 1.0
