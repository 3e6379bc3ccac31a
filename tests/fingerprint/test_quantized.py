"""The parts of quantized tensors: what is read, what is left out, what is said to be missing."""

import subprocess
import sys
import types

import pytest
import torch
from fingerprint import quantized_fakes as fakes
from fingerprint.quantized_fakes import (
    K,
    M,
    blockwise,
    float8,
    grouped,
    hybrid,
    mxfp8,
    nvfp4,
    torchao_float8,
    torchao_mx,
    torchao_nvfp4,
    torchao_training,
)
from torch import nn

from bitstep.fingerprint import fingerprint, quantized
from bitstep.fingerprint import grouped as grouped_reader
from bitstep.fingerprint.quantized import is_quantized, parts_of
from bitstep.fingerprint.scales import Scaling, region, unswizzled, valid_scales

PADDED = [mxfp8, nvfp4, blockwise, hybrid, grouped]
EVERY = [float8, *PADDED, torchao_mx, torchao_nvfp4, torchao_float8, torchao_training]


def contents(tensor):
    """What of a tensor counts: bits or words, by part."""
    return {
        part.name: part.text if part.tensor is None else fingerprint(part.tensor.contiguous())
        for part in parts_of(tensor)
    }


def bytes_of(tensor, name):
    [part] = [part for part in parts_of(tensor) if part.name == name]
    return part.tensor


def missing(tensor):
    return {p.name: p.text for p in parts_of(tensor) if p.tensor is None and "=" not in p.text}


@pytest.mark.parametrize("make", EVERY)
def test_payload_comes_first_and_meta_last_in_the_same_order_every_time(make):
    names = [[part.name for part in parts_of(make(seed=seed))] for seed in (1, 2)]
    assert names[0] == names[1]
    assert (names[0][0], names[0][-1]) == ("payload", "meta")
    assert len(set(names[0])) == len(names[0])


@pytest.mark.parametrize("make", EVERY)
def test_other_values_have_other_payloads(make):
    assert contents(make(seed=1))["payload"] != contents(make(seed=2))["payload"]


@pytest.mark.parametrize("make", PADDED)
def test_what_lies_in_the_padding_does_not_count(make):
    assert contents(make(padding=1)) == contents(make(padding=2))


@pytest.mark.parametrize("make", [mxfp8, nvfp4, hybrid, grouped])
def test_what_lies_in_the_padding_of_swizzled_scales_does_not_count(make):
    assert contents(make(padding=1, swizzled=True)) == contents(make(padding=2, swizzled=True))


@pytest.mark.parametrize("make", PADDED)
def test_a_digest_that_reads_padding_would_be_seen(make, monkeypatch):
    def whole(buffer, *_, **__):
        return buffer

    monkeypatch.setattr(quantized, "valid_scales", whole)
    monkeypatch.setattr(grouped_reader, "valid_scales", whole)
    assert contents(make(padding=1)) != contents(make(padding=2))


@pytest.mark.parametrize("make", [mxfp8, nvfp4, hybrid, grouped, torchao_mx, torchao_nvfp4])
def test_swizzled_scales_are_the_same_scales_and_meta_says_that_they_are_swizzled(make):
    plain, other = contents(make()), contents(make(swizzled=True))
    differ = {name for name in plain if plain[name] != other[name]}
    assert differ
    assert all(name.startswith("meta") for name in differ)
    assert all("swizzled=True" in other[name] for name in differ)


@pytest.mark.parametrize("size", [(1, 1), (128, 4), (160, 3), (300, 9)])
def test_unswizzled_inverts_the_documented_place_of_each_scale(size):
    rows, columns = size
    valid = fakes.codes(rows, columns, seed=3)
    buffer = fakes.padded(valid, (fakes.up(rows, 128), fakes.up(columns, 4)), 1)
    assert torch.equal(unswizzled(fakes.swizzle(buffer), rows, columns), valid)


@pytest.mark.parametrize(
    ("scaling", "column", "allocated", "valid"),
    [
        (Scaling.MXFP8, False, (256, 4), (160, 3)),
        (Scaling.MXFP8, True, (8, 128), (5, 96)),
        (Scaling.NVFP4, False, (256, 8), (160, 6)),
        (Scaling.NVFP4, True, (128, 12), (96, 10)),
        (Scaling.SQUARES, False, (2, 4), (2, 1)),
        (Scaling.SQUARES, True, (1, 4), (1, 2)),
        (Scaling.LINES, False, (1, 160), (1, 160)),
        (Scaling.LINES, True, (2, 96), (2, 96)),
    ],
)
def test_the_valid_region_of_each_format(scaling, column, allocated, valid):
    assert region(scaling, M, K, column) == (allocated, valid)


def test_scales_that_lost_their_padding_are_read_as_they_are():
    valid = fakes.codes(M, K // 32, seed=2)
    trimmed = fakes.padded(valid, (M, 4), 1)
    for buffer in (valid, trimmed):
        assert torch.equal(valid_scales(buffer, Scaling.MXFP8, M, K, False), valid)


@pytest.mark.parametrize("swizzled", [False, True])
def test_scales_of_no_known_extent_are_missing_and_said_to_be(swizzled):
    tensor = mxfp8(swizzled=swizzled)
    tensor._rowwise_scale_inv = tensor._rowwise_scale_inv[:100]
    assert missing(tensor) == {"scale": "unknown"}
    assert contents(tensor)["meta"].endswith("unknown=scale")


def test_what_nobody_made_is_absent():
    assert missing(mxfp8(columns=False)) == {"payload.column": "absent", "scale.column": "absent"}
    tensor = nvfp4()
    tensor._rowwise_data = None  # what is left are scales of a payload that is gone
    assert missing(tensor) == {"payload": "absent", "scale": "absent"}
    assert contents(tensor)["meta"].endswith("absent=payload,scale")


def test_a_stale_transpose_is_invalid_and_its_bits_do_not_count():
    stale = float8(stale=True)
    assert missing(stale) == {"payload.column": "invalid"}
    before = contents(stale)
    fakes.flip(stale._transpose)
    assert contents(stale) == before


def test_a_cleared_tensor_has_parts_and_raises_nothing():
    tensor = mxfp8()
    for field in ("_rowwise_data", "_rowwise_scale_inv", "_columnwise_scale_inv"):
        setattr(tensor, field, torch.empty(0, dtype=torch.uint8))
    assert missing(tensor) == {"scale": "unknown", "scale.column": "unknown"}


@pytest.mark.parametrize(
    ("make", "storage"),
    [
        (float8, fakes.Float8TensorStorage),
        (mxfp8, fakes.MXFP8TensorStorage),
        (nvfp4, fakes.NVFP4TensorStorage),
        (blockwise, fakes.Float8BlockwiseQTensorStorage),
        (hybrid, fakes.HybridQuantizedTensorStorage),
        (grouped, fakes.GroupedTensorStorage),
    ],
)
def test_a_storage_that_is_no_tensor_has_the_parts_of_its_tensor(make, storage):
    found, expected = parts_of(make(storage)), parts_of(make())
    assert [(a.name, a.tensor is None) for a in found] == [
        (b.name, b.tensor is None) for b in expected
    ]
    for a, b in zip(found[:-1], expected[:-1], strict=True):
        assert a.tensor is None or torch.equal(a.tensor, b.tensor)
    assert f"class={storage.__name__} dtype=bfloat16" in found[-1].text


@pytest.mark.parametrize(
    ("make", "storage"),
    [
        (float8, fakes.Float8TensorStorage),
        (mxfp8, fakes.MXFP8TensorStorage),
        (nvfp4, fakes.NVFP4TensorStorage),
        (blockwise, fakes.Float8BlockwiseQTensorStorage),
    ],
)
def test_the_shape_of_a_storage_follows_from_either_copy(make, storage):
    assert parts_of(make(storage))[-1].shape == (M, K)
    alone = make(storage)
    for field in ("_rowwise_data", "_data"):
        if hasattr(alone, field):
            setattr(alone, field, None)
    assert parts_of(alone)[-1].shape == (M, K)


def test_high_precision_in_the_place_of_a_quantized_copy_is_a_payload_of_its_dtype():
    held = torch.ones(M, K, dtype=torch.bfloat16)
    tensor = hybrid()
    tensor._rowwise_storage = fakes.IdentityTensorStorage(_hp_data=held, _quantizer=None)
    assert bytes_of(tensor, "payload").dtype == torch.bfloat16
    assert "row=IdentityTensorStorage" in contents(tensor)["meta"]


def test_one_scale_of_a_column_storage_is_that_of_the_columns():
    tensor = hybrid()
    column = float8(fakes.Float8TensorStorage)
    column._data = None
    tensor._columnwise_storage = column
    assert torch.equal(bytes_of(tensor, "scale.column"), column._scale_inv)
    assert torch.equal(bytes_of(tensor, "payload.column"), column._transpose)


def test_zeros_of_both_signs_and_equal_products_stay_different():
    tensor, other = mxfp8(), mxfp8()
    tensor._rowwise_data[0, 0], other._rowwise_data[0, 0] = 0x00, 0x80  # 0 and -0
    assert contents(tensor)["payload"] != contents(other)["payload"]
    tensor, other = mxfp8(), mxfp8()
    tensor._rowwise_data[0, :32], other._rowwise_data[0, :32] = 0x38, 0x40  # 1 and 2
    tensor._rowwise_scale_inv[0, 0], other._rowwise_scale_inv[0, 0] = 128, 127  # 2 and 1
    first, second = contents(tensor), contents(other)
    assert [name for name in first if first[name] != second[name]] == ["payload", "scale"]


@pytest.mark.parametrize(
    ("name", "scaling"),
    [("Float8Quantizer", "tensor"), ("NoQuantizer", "None"), ("NVFP4Quantizer", "nvfp4")],
)
def test_a_grouped_tensor_of_another_quantizer(name, scaling):
    shapes = [(32, 64), (16, 64)]
    data = fakes.codes(4096, seed=1)
    tensor = fakes.GroupedTensorStorage(
        rowwise_data=data, columnwise_data=None, scale_inv=torch.rand(2048).view(torch.uint8),
        columnwise_scale_inv=None, amax=torch.arange(5.0), columnwise_amax=None, num_tensors=2,
        quantizer=type(name, (), {})(), tensor_shapes=shapes, fake_dtype=torch.bfloat16,
        first_dims=None, last_dims=None, tensor_offsets=None, logical_shape=(48, 64),
    )  # fmt: skip
    valid = 48 * 64 // (2 if scaling == "nvfp4" else 1)
    assert torch.equal(bytes_of(tensor, "payload"), data[:valid])
    assert torch.equal(bytes_of(tensor, "amax"), torch.arange(2.0))
    scale = bytes_of(tensor, "scale")
    assert {"tensor": 2, "None": None, "nvfp4": 48 * 4}[scaling] == (
        None if scale is None else scale.numel()
    )
    assert f"scaling={scaling}" in contents(tensor)["meta"]


def test_members_are_read_from_dims_where_shapes_are_not_kept():
    assert contents(grouped(known=False)) == contents(grouped())


def test_members_that_only_an_accelerator_knows_are_of_unknown_extent():
    tensor = grouped(known=False)
    tensor.first_dims = types.SimpleNamespace(is_cpu=False)
    assert {"payload": "unknown", "scale": "unknown"}.items() <= missing(tensor).items()


def test_a_transposed_tensor_of_torchao_has_the_same_scales_swizzled_or_not():
    plain, other = torchao_mx().t(), torchao_mx(swizzled=True).t()
    assert torch.equal(bytes_of(plain, "scale"), bytes_of(other, "scale"))
    assert bytes_of(plain, "scale").stride() == bytes_of(other, "scale").stride()


def test_four_bit_payloads_are_their_packed_bytes():
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    values = torch.arange(64.0).view(2, 32)
    tensor = MXTensor.to_mx(values, torch.float4_e2m1fn_x2, 32)
    assert bytes_of(tensor, "payload").shape == (2, 16)
    assert parts_of(tensor)[-1].shape == (2, 32)


class Lookalike(torch.Tensor):
    qdata = scale = None


@pytest.mark.parametrize(
    "value",
    [torch.ones(2), nn.Parameter(torch.ones(2)), None, 3, torch.ones(2).as_subclass(Lookalike)],
    ids=["tensor", "parameter", "None", "number", "subclass"],
)
def test_anything_else_is_not_quantized(value):
    assert parts_of(value) is None
    assert not is_quantized(value)


def test_neither_torchao_nor_transformer_engine_is_imported():
    code = (
        "import sys, bitstep.observe, bitstep.fingerprint.quantized\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('torchao', 'transformer_engine')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
