"""Every dtype and layout gives the value of the definition, on every path."""

import gc
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bitstep.errors import FingerprintError
from bitstep.fingerprint import cpu, fallback, fingerprint, nbytes, part, tensors, warm
from bitstep.fingerprint.definition import MASK, SIZES, sum_of
from bitstep.fingerprint.places import whole
from bitstep.records import Fingerprint, FlatRange

DTYPES = sorted(SIZES)
SHAPES = [(), (0,), (1,), (5,), (3, 0, 2), (7, 3), (2, 3, 4, 5), (1, 1, 1), (2049,), (70, 130)]
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")


def content(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def tensor_of(dtype, shape, seed=0):
    """A contiguous tensor with random bits, and its bytes."""
    data = content(nbytes(dtype, shape), seed)
    if not len(data):  # A tensor of no NumPy bytes cannot be viewed as another dtype.
        return torch.empty(shape, dtype=getattr(torch, dtype)), data
    return torch.from_numpy(data.copy()).view(getattr(torch, dtype)).view(shape), data


def on_the_fallback(tensor, table=1):
    values = tensors._resolved(tensor)
    return int(fallback.box_sum(values, whole(tensor.shape), 0, table)) & MASK


def test_every_dtype_of_torch_is_known_or_quantized():
    names = {str(value)[6:] for value in vars(torch).values() if isinstance(value, torch.dtype)}
    quantized = {"qint8", "quint8", "qint32", "quint4x2", "quint2x4"}
    assert names - quantized == set(SIZES)
    assert all(getattr(torch, name).itemsize == size for name, size in SIZES.items())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_contiguous_tensors_equal_the_definition(dtype, shape):
    tensor, data = tensor_of(dtype, shape)
    for table in (1, 2):
        expected = sum_of(data, table=table)
        assert fingerprint(tensor, table=table) == Fingerprint(expected, dtype, shape)
        assert on_the_fallback(tensor, table) == expected


@pytest.mark.parametrize("limit", [1, 64, 1 << 20])
@pytest.mark.parametrize("dtype", DTYPES)
def test_other_layouts_equal_the_definition(dtype, limit, monkeypatch):
    monkeypatch.setattr(tensors, "_COPY_LIMIT", limit)
    monkeypatch.setattr(fallback, "_PIECE", limit)
    tensor, data = tensor_of(dtype, (6, 4, 5))
    array = data.reshape(6, 4, 5, SIZES[dtype])
    layouts = {
        "transposed": (tensor.transpose(0, 2), array.transpose(2, 1, 0, 3)),
        "permuted": (tensor.permute(1, 2, 0), array.transpose(1, 2, 0, 3)),
        "stepped": (tensor[::2, :, 1::3], array[::2, :, 1::3]),
        "sliced": (tensor[1:, 2:, 3:], array[1:, 2:, 3:]),
        "offset": (tensor[1:], array[1:]),
        "expanded": (tensor[:1].expand(3, 4, 5), np.broadcast_to(array[:1], (3, *array.shape[1:]))),
        "repeated": (
            tensor[0, 0, 0].expand(2, 3),
            np.broadcast_to(array[0, 0, 0], (2, 3, SIZES[dtype])),
        ),
        "0-d": (tensor[3, 2, 1], array[3, 2, 1]),
        "emptied": (tensor.transpose(0, 1)[:, 3:3], array[:, 3:3]),
    }
    for name, (view, logical) in layouts.items():
        expected = sum_of(np.ascontiguousarray(logical).reshape(-1))
        assert fingerprint(view) == Fingerprint(expected, dtype, tuple(view.shape)), name
        assert on_the_fallback(view) == expected, name


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_lazy_conjugates_and_negatives_hash_their_values(dtype):
    tensor = torch.tensor([1 + 2j, -3 - 4j, 0j], dtype=dtype)
    conjugate = tensor.conj()
    assert conjugate.is_conj()
    assert conjugate.imag.is_neg()
    assert fingerprint(conjugate) == fingerprint(conjugate.resolve_conj())
    assert fingerprint(conjugate) != fingerprint(tensor)
    assert fingerprint(conjugate.imag) == fingerprint(-tensor.imag)
    assert fingerprint(conjugate.imag) != fingerprint(tensor.imag)
    place = FlatRange((3,), 0, tensor.nbytes)
    assert part(conjugate, place).sum == fingerprint(conjugate).sum
    assert on_the_fallback(conjugate) == fingerprint(conjugate).sum


def test_a_contiguous_lazy_negative_hashes_its_values():
    tensor = torch.arange(1.0, 4.0)
    negative = torch._neg_view(tensor)
    assert negative.is_neg()
    assert negative.is_contiguous()
    assert fingerprint(negative) == fingerprint(-tensor) != fingerprint(tensor)


def test_memory_that_is_not_aligned_to_a_lane():
    data = content(40_003)
    for shift in range(1, 9):
        view = torch.from_numpy(data)[shift:]
        assert fingerprint(view).sum == sum_of(data[shift:]) == on_the_fallback(view)


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(0, 40_000),
    start=st.integers(0, 30_000) | st.integers(0, 2**52),
    shift=st.integers(0, 7),
    table=st.sampled_from([1, 2]),
)
def test_kernel_and_fallback_equal_the_definition_at_any_byte(size, start, shift, table):
    data = content(size + shift, seed=size)[shift:]
    expected = sum_of(data, start, table)
    assert cpu.run_sum(data.ctypes.data, size, start, *cpu.TABLES[table]) == expected
    flat = torch.from_numpy(data)
    if size:
        assert int(fallback.flat_sum(flat, start, table)) & MASK == expected


@pytest.mark.parametrize("size", [8 * 8192 - 1, 8 * 8192, 17 * 8192 + 5, 40 * 8192])
@pytest.mark.parametrize("start", [0, 4, 8192, 3 * 8192, 8192 * 2**40, 8192 * 5 - 3])
def test_blocks_side_by_side_equal_the_definition(size, start):
    data = content(size + 3)[3:]
    for table, tail in cpu.TABLES.items():
        found = cpu.run_sum(data.ctypes.data, size, start, *tail)
        assert found == sum_of(data, start, table)


def test_many_boxes_in_one_call_equal_each_by_itself():
    data = content(200_000)
    loops = np.array([[3, 100], [2, 1000], [5, 7]], np.int64)
    jobs = np.array([(70_000, 8, 0, 0), (40, 16, 0, 2), (0, 0, 0, 0), (9, 5, 2, 3)], np.int64)
    addresses = data.ctypes.data + np.array([1, 80_000, 0, 150_000])
    sums = np.empty(4, np.uint64)
    for tail in cpu.TABLES.values():
        cpu.box_sums(addresses, jobs, loops, sums, *tail)
        expected = [
            cpu.box_sum(address, size, start, loops[low:high], *tail)
            for address, (size, start, low, high) in zip(addresses, jobs.tolist(), strict=True)
        ]
        assert sums.tolist() == expected


def test_the_value_does_not_depend_on_the_number_of_threads():
    tensor, data = tensor_of("bfloat16", (300, 1000))
    before = torch.get_num_threads()
    found = set()
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            found |= {fingerprint(tensor).sum, on_the_fallback(tensor)}
            found.add(fingerprint(tensor.view(1000, 300).t().contiguous().t()).sum)
    finally:
        torch.set_num_threads(before)
    assert found == {sum_of(data)}


def test_eight_python_threads_at_once_give_one_value():
    tensor, data = tensor_of("float32", (500, 700))
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append((fingerprint(tensor), fingerprint(tensor.t())))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert {whole.sum for whole, _ in found} == {sum_of(data)}
    assert len({turned.sum for _, turned in found}) == 1


def test_a_parameter_and_a_plain_subclass_are_read():
    class Named(torch.Tensor):
        pass

    tensor = torch.randn(4, 3)
    assert fingerprint(torch.nn.Parameter(tensor)) == fingerprint(tensor)
    assert fingerprint(tensor.as_subclass(Named)) == fingerprint(tensor)


def test_reading_changes_nothing():
    tensor = torch.randn(40, 30, requires_grad=True)
    turned = tensor.t()
    state, version, bits = torch.get_rng_state(), tensor._version, tensor.detach().clone()
    node = turned.grad_fn
    gc.collect()
    fingerprint(turned), fingerprint(tensor), part(turned, FlatRange((30, 40), 0, 4800))
    assert torch.equal(torch.get_rng_state(), state)
    assert (tensor._version, tensor.grad, turned.grad_fn) == (version, None, node)
    assert torch.equal(tensor.detach().view(torch.int32), bits.view(torch.int32))


def test_inference_tensors_are_read_inside_and_outside_of_inference_mode():
    with torch.inference_mode():
        tensor = torch.arange(12.0).reshape(3, 4)
        inside = fingerprint(tensor), fingerprint(tensor.t())
        assert on_the_fallback(tensor) == inside[0].sum
    assert (fingerprint(tensor), fingerprint(tensor.t())) == inside


def test_a_strided_tensor_is_not_copied_whole(monkeypatch):
    monkeypatch.setattr(tensors, "_COPY_LIMIT", 1 << 12)
    sizes = []
    contiguous = torch.Tensor.contiguous

    def counted(self):
        sizes.append(self.nbytes)
        return contiguous(self)

    tensor = torch.arange(128 * 256, dtype=torch.int32).reshape(256, 128).t()
    expected = fingerprint(tensor.contiguous())
    monkeypatch.setattr(torch.Tensor, "contiguous", counted)
    assert fingerprint(tensor) == expected
    assert max(sizes) <= 1 << 12
    assert sum(sizes) == tensor.nbytes


def test_warm_compares_the_kernel_with_the_definition(monkeypatch):
    warm()
    monkeypatch.setattr(cpu, "run_sum", lambda *_: 1)
    with pytest.raises(FingerprintError, match="delete the folder __pycache__"):
        warm()


def test_a_cache_that_cannot_be_used_is_done_without(monkeypatch):
    def njit(signature, *, nogil, cache=False):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(cpu, "njit", njit)
    assert cpu._compile("", abs) is abs


def test_a_large_piece_on_the_fallback_is_cut(monkeypatch):
    sizes = []
    flat_sum = fallback.flat_sum

    def counted(data, start, table):
        sizes.append(len(data))
        return flat_sum(data, start, table)

    monkeypatch.setattr(fallback, "_PIECE", 1 << 12)
    monkeypatch.setattr(fallback, "flat_sum", counted)
    tensor = torch.arange(5000, dtype=torch.int32)
    assert on_the_fallback(tensor) == fingerprint(tensor).sum
    assert max(sizes) <= 1 << 12
    assert sum(sizes) == tensor.nbytes


def test_there_is_no_third_table():
    for tensor in (torch.ones(3), torch.ones(3, 2).t()):
        with pytest.raises(FingerprintError, match="no table 3: use 1 or 2"):
            fingerprint(tensor, table=3)
