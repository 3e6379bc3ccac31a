"""Cases: products of matrices, forward and backward, in odd shapes and small types too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from bitstep.investigate.survey.case import SHORT, Case
from bitstep.investigate.survey.inputs import Input, floats, octets

_ALL: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def cases() -> Iterator[Case]:
    """All of them."""
    for dtype in _ALL:
        yield from _products(dtype)
    for dtype in (torch.float32, torch.float64):
        yield from _odd(dtype)
    large = {"a": floats(256, 1024), "b": floats(1024, 1024)}
    yield Case("mm 256x1024x1024 f32", "aten.mm", large, torch.mm, rows=("a",))
    yield from _quantized()


def _products(dtype: torch.dtype) -> Iterator[Case]:
    short = SHORT[dtype]

    def of(*shape: int) -> Input:
        return floats(*shape, dtype=dtype)

    square = {"a": of(256, 512), "b": of(512, 384)}
    linear = {"x": of(256, 512), "w": of(384, 512), "bias": of(384)}
    batch = {"a": of(6, 65, 96), "b": of(6, 96, 47)}
    vector = {"a": of(300, 257), "x": of(257)}
    yield Case(f"mm {short}", "aten.mm", square, torch.mm, rows=("a",))
    yield Case(f"mm backward {short}", "aten.mm", square, torch.mm, backward=True)
    yield Case(f"linear {short}", "aten.addmm", linear, functional.linear, rows=("x",))
    yield Case(f"linear backward {short}", "aten.mm", linear, functional.linear, backward=True)
    yield Case(f"bmm {short}", "aten.bmm", batch, torch.bmm, rows=("a", "b"))
    yield Case(f"bmm backward {short}", "aten.bmm", batch, torch.bmm, backward=True)
    yield Case(f"mv {short}", "aten.mv", vector, torch.mv, rows=("a",))
    yield Case(
        f"baddbmm {short}",
        "aten.baddbmm",
        {"c": of(6, 65, 47), **batch},
        lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=0.3),
    )


def _odd(dtype: torch.dtype) -> Iterator[Case]:
    short = SHORT[dtype]

    def of(*shape: int) -> Input:
        return floats(*shape, dtype=dtype)

    long = {"a": of(16, 65536), "b": of(65536, 16)}
    yield Case(f"mm 16x65536x16 {short}", "aten.mm", long, torch.mm)
    prime = {"a": of(257, 129), "b": of(129, 67)}
    yield Case(f"mm 257x129x67 {short}", "aten.mm", prime, torch.mm, rows=("a",))
    column = {"a": of(300, 257), "b": of(257, 1)}
    yield Case(f"mm 300x257x1 {short}", "aten.mm", column, torch.mm, rows=("a",))
    yield Case(
        f"mv transposed {short}",
        "aten.mv",
        {"a": of(257, 300), "x": of(257)},
        lambda a, x: torch.mv(a.t(), x),
    )
    yield Case(f"outer {short}", "aten.mul", {"x": of(300), "y": of(257)}, torch.outer)
    small = {"a": of(64, 3, 5), "b": of(64, 5, 7)}
    yield Case(f"bmm 64 of 3x5x7 {short}", "aten.bmm", small, torch.bmm, rows=("a", "b"))


def _quantized() -> Iterator[Case]:
    half = torch.bfloat16
    yield Case(
        "_grouped_mm bf16",
        "aten._grouped_mm",
        {"a": floats(64, 128, dtype=half), "b": floats(4, 128, 32, dtype=half)},
        _grouped,
    )
    yield Case(
        "_grouped_mm backward bf16",
        "aten._grouped_mm",
        {"a": floats(64, 128, dtype=half), "b": floats(4, 128, 32, dtype=half)},
        _grouped,
        backward=True,
    )
    yield Case(
        "_scaled_mm e4m3",
        "aten._scaled_mm",
        {"a": floats(64, 128), "b": floats(64, 128)},
        _scaled,
    )
    yield Case(
        "_int_mm", "aten._int_mm", {"a": octets(64, 128), "b": octets(128, 64)}, torch._int_mm
    )


def _grouped(a: Tensor, b: Tensor) -> Tensor:
    ends = torch.tensor([5, 16, 40, 64], dtype=torch.int32, device=a.device)
    return torch._grouped_mm(a, b, offs=ends)


def _scaled(a: Tensor, b: Tensor) -> Tensor:
    one = torch.ones((), device=a.device)
    left, right = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    return torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
