"""Quantized tensors with Transformer Engine's class and field names and its padding rules, without
Transformer Engine, and torchao's own. Everything but the values of padding follows from `seed`.

`mxfp8(padding=1)` and `mxfp8(padding=2)` are the same tensor: what lies around the valid scales
is what somebody else left there.
"""

from __future__ import annotations

import enum
from math import prod

import torch
from torch import Tensor

M, K = 160, 96
SHAPE = (M, K)
"""Neither is a multiple of 128, nor K / 32 of 4: every buffer of scales has padding both ways."""


class DType(enum.IntEnum):
    kFloat8E4M3 = 7
    kFloat4E2M1 = 10


class Storage:
    """Fields, and no tensor."""

    def __init__(self, **fields: object) -> None:
        self._dtype = torch.bfloat16
        self.__dict__.update(fields)


class Quantized(torch.Tensor):
    """A tensor without bits of its own."""

    def __new__(cls, shape=SHAPE, **fields):
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bfloat16)
        made.__dict__.update(fields)
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(tuple(args[0].shape), **args[0].__dict__)
        raise NotImplementedError(f"{cls.__name__}: {func}")


class Float8TensorStorage(Storage): ...


class Float8Tensor(Quantized): ...


class MXFP8TensorStorage(Storage): ...


class MXFP8Tensor(Quantized): ...


class NVFP4TensorStorage(Storage): ...


class NVFP4Tensor(Quantized): ...


class Float8BlockwiseQTensorStorage(Storage): ...


class Float8BlockwiseQTensor(Quantized): ...


class HybridQuantizedTensorStorage(Storage): ...


class HybridQuantizedTensor(Quantized): ...


class IdentityTensorStorage(Storage): ...


class GroupedTensorStorage(Storage): ...


class GroupedTensor(Quantized): ...


class MXFP8Quantizer: ...


class NVFP4Quantizer: ...


class Float8Quantizer: ...


class Float8BlockQuantizer:
    def __init__(self, block_scaling_dim):
        self.block_scaling_dim = block_scaling_dim


def codes(*shape: int, seed: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.rand(shape, generator=generator, dtype=dtype)
    return torch.randint(0, 256, shape, generator=generator, dtype=dtype)


def padded(valid: Tensor, allocated: tuple[int, int], padding: int) -> Tensor:
    """The valid region in a buffer that holds what somebody left there."""
    buffer = codes(*allocated, seed=1000 + padding, dtype=valid.dtype)
    buffer[: valid.shape[0], : valid.shape[1]] = valid
    return buffer


def swizzle(scales: Tensor) -> Tensor:
    """Element by element, as cuBLAS documents where the scale of row r and column c lies."""
    rows, columns = scales.shape
    flat = torch.empty(rows * columns, dtype=scales.dtype)
    for r in range(rows):
        for c in range(columns):
            tile = (r // 128) * (columns // 4) + c // 4
            flat[512 * tile + 16 * (r % 32) + 4 * (r % 128 // 32) + c % 4] = scales[r, c]
    return flat.view(rows, columns)


def up(count: int, to: int) -> int:
    return -(-count // to) * to


def float8(cls=Float8Tensor, seed=1, transpose=True, stale=False, **_):
    data = codes(M, K, seed=seed)
    return cls(
        _data=data, _scale_inv=codes(1, seed=seed + 1, dtype=torch.float32), _quantizer=None,
        _fp8_dtype=DType.kFloat8E4M3, _transpose=data.t().contiguous() if transpose else None,
        _transpose_invalid=stale or not transpose,
    )  # fmt: skip


def mxfp8(cls=MXFP8Tensor, seed=1, padding=1, swizzled=False, columns=True):
    row = padded(codes(M, K // 32, seed=seed + 1), (up(M, 128), up(K // 32, 4)), padding)
    column = padded(codes(M // 32, K, seed=seed + 3), (up(M // 32, 4), up(K, 128)), padding + 50)
    if swizzled:
        # The column copy lies as its transposed matrix does.
        row, column = swizzle(row), swizzle(column.t().contiguous()).view(column.shape)
    return cls(
        _rowwise_data=codes(M, K, seed=seed), _rowwise_scale_inv=row,
        _columnwise_data=codes(M, K, seed=seed + 2) if columns else None,
        _columnwise_scale_inv=column if columns else None, _quantizer=None,
        _fp8_dtype=DType.kFloat8E4M3, _with_gemm_swizzled_scales=swizzled,
    )  # fmt: skip


def nvfp4(cls=NVFP4Tensor, seed=1, padding=1, swizzled=False, columns=True):
    row = padded(codes(M, up(K, 16) // 16, seed=seed + 1), (up(M, 128), up(K // 16, 4)), padding)
    column = padded(codes(K, M // 16, seed=seed + 3), (up(K, 128), up(M // 16, 4)), padding + 50)
    if swizzled:
        row, column = swizzle(row), swizzle(column)
    return cls(
        _rowwise_data=codes(M, K // 2, seed=seed), _rowwise_scale_inv=row,
        _columnwise_data=codes(K, M // 2, seed=seed + 2) if columns else None,
        _columnwise_scale_inv=column if columns else None,
        _amax_rowwise=codes(1, seed=seed + 4, dtype=torch.float32),
        _amax_columnwise=codes(1, seed=seed + 5, dtype=torch.float32) if columns else None,
        _quantizer=None, _fp4_dtype=DType.kFloat4E2M1, _with_gemm_swizzled_scales=swizzled,
        _row_scaled_nvfp4=False, _nvfp4_use_4over6=False, _nvfp4_e4m3_max=448,
    )  # fmt: skip


def blockwise(cls=Float8BlockwiseQTensor, seed=1, padding=1, squares=True, columns=True):
    tall, wide = up(M, 128) // 128, up(K, 128) // 128
    of_rows, of_columns = ((tall, wide), (wide, tall)) if squares else ((wide, M), (tall, K))
    float32 = torch.float32
    row = padded(
        codes(*of_rows, seed=seed + 1, dtype=float32), (of_rows[0], up(of_rows[1], 4)), padding
    )
    column = padded(codes(*of_columns, seed=seed + 3, dtype=float32),
                    (of_columns[0], up(of_columns[1], 4)), padding + 50)  # fmt: skip
    return cls(
        _rowwise_data=codes(M, K, seed=seed), _rowwise_scale_inv=row,
        _columnwise_data=codes(K, M, seed=seed + 2) if columns else None,
        _columnwise_scale_inv=column if columns else None, _quantizer=None,
        _fp8_dtype=DType.kFloat8E4M3, _is_2D_scaled=squares,
    )  # fmt: skip


def hybrid(cls=HybridQuantizedTensor, seed=1, padding=1, swizzled=False, columns=True):
    """Rows in MXFP8, columns in NVFP4."""
    row = mxfp8(MXFP8TensorStorage, seed, padding, swizzled, columns=False)
    column = nvfp4(NVFP4TensorStorage, seed + 10, padding, swizzled) if columns else None
    if column is not None:
        column._rowwise_data = column._rowwise_scale_inv = column._amax_rowwise = None
    return cls(_rowwise_storage=row, _columnwise_storage=column, _quantizer=None)


MEMBERS = ((64, 96), (32, 96), (64, 96))


def grouped(cls=GroupedTensor, seed=1, padding=1, swizzled=False, columns=True, known=True):
    """Three members in MXFP8; the flat payload has a tail that nobody wrote."""
    ones = [
        mxfp8_of(shape, seed + 10 * at, padding + at, swizzled) for at, shape in enumerate(MEMBERS)
    ]
    data, scales, column, column_scales = (
        torch.cat([one[at].reshape(-1) for one in ones]) for at in range(4)
    )
    tail = codes(4096, seed=2000 + padding)
    ends = torch.tensor([0, *(prod(shape) for shape in MEMBERS)]).cumsum(0)
    return cls(
        rowwise_data=torch.cat([data, tail]), scale_inv=torch.cat([scales, tail[:512]]),
        columnwise_data=torch.cat([column, tail.flip(0)]) if columns else None,
        columnwise_scale_inv=column_scales if columns else None,
        amax=None, columnwise_amax=None, scale=None, num_tensors=3, quantizer=MXFP8Quantizer(),
        tensor_shapes=list(MEMBERS) if known else None, fake_dtype=torch.bfloat16,
        first_dims=torch.tensor([shape[0] for shape in MEMBERS]), last_dims=None,
        tensor_offsets=ends, logical_shape=(M, K), _with_gemm_swizzled_scales=swizzled,
        row_scaled_nvfp4=False,
    )  # fmt: skip


def mxfp8_of(shape, seed, padding, swizzled):
    m, k = shape
    row = padded(codes(m, k // 32, seed=seed + 1), (up(m, 128), up(k // 32, 4)), padding)
    column = padded(codes(m // 32, k, seed=seed + 3), (up(m // 32, 4), up(k, 128)), padding)
    if swizzled:
        row, column = swizzle(row), swizzle(column.t().contiguous())
    return codes(m, k, seed=seed), row, codes(m, k, seed=seed + 2), column


def torchao_mx(seed=1, swizzled=False, **_):
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    return MXTensor.to_mx(_values(seed), torch.float8_e4m3fn, 32, is_swizzled_scales=swizzled)


def torchao_nvfp4(seed=1, swizzled=False, **_):
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor as Real

    scale = torch.tensor(0.5)
    return Real.to_nvfp4(_values(seed), per_tensor_scale=scale, is_swizzled_scales=swizzled)


def torchao_float8(seed=1, **_):
    from torchao.quantization import Float8Tensor as Real

    return Real.from_hp(_values(seed))


def torchao_training(seed=1, **_):
    from torchao.float8.float8_training_tensor import Float8TrainingTensor

    data = _values(seed).to(torch.float8_e4m3fn)
    return Float8TrainingTensor(data, torch.tensor(0.5), torch.bfloat16, None)


def _values(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(M, K, generator=generator).to(torch.bfloat16)


def flip(buffer: Tensor, at: int = 0) -> None:
    """One bit of the byte `at` of a buffer, where it lies."""
    buffer.view(-1).view(torch.uint8)[at] ^= 1
