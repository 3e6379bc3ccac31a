"""Cases: norms, losses, attention, convolution, pooling and resampling, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bitstep.investigate.survey.case import SHORT, Case
from bitstep.investigate.survey.inputs import Input, flags, floats, index

ROWS: Final = 256
WIDTH: Final = 515
Run = Callable[..., Any]


def cases() -> Iterator[Case]:
    """All of them."""
    for dtype in (torch.float32, torch.bfloat16):
        yield from _both(dtype, _norms(dtype))
        yield from _both(dtype, _losses(dtype))
        yield from _both(dtype, _attention(dtype))
        yield from _both(dtype, _convolutions(dtype))
    yield from _both(torch.float32, _images())
    yield from _unpooled()


Row = tuple[str, str, str, dict[str, Input], Run, tuple[str, ...]]
"""Name, operation forward, operation backward, inputs, call, rows."""


def _both(dtype: torch.dtype, rows: Iterator[Row]) -> Iterator[Case]:
    for name, forward, backward, wanted, run, by_row in rows:
        yield Case(f"{name} {SHORT[dtype]}", f"aten.{forward}", wanted, run, rows=by_row)
        shown = f"{name} backward {SHORT[dtype]}"
        yield Case(shown, f"aten.{backward}", wanted, run, backward=True)


def _norms(dtype: torch.dtype) -> Iterator[Row]:
    def of(*shape: int) -> Input:
        return floats(*shape, dtype=dtype)

    x, w, b = of(ROWS, WIDTH), of(WIDTH), of(WIDTH)
    image = {"x": of(8, 12, 17, 19), "w": of(12), "b": of(12)}
    yield (
        "layer_norm", "native_layer_norm", "native_layer_norm_backward",
        {"x": x, "w": w, "b": b},
        lambda x, w, b: functional.layer_norm(x, (WIDTH,), w, b), ("x",),
    )  # fmt: skip
    yield (
        "rms_norm", "rsqrt", "mul", {"x": x, "w": w},
        lambda x, w: functional.rms_norm(x, (WIDTH,), w), ("x",),
    )  # fmt: skip
    yield (
        "group_norm", "native_group_norm", "native_group_norm_backward", image,
        lambda x, w, b: functional.group_norm(x, 4, w, b), ("x",),
    )  # fmt: skip
    yield (
        "batch_norm", "native_batch_norm", "native_batch_norm_backward", image,
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True), (),
    )  # fmt: skip
    yield "softmax", "_softmax", "_softmax_backward_data", {"x": x}, _along(torch.softmax), ("x",)
    yield (
        "safe_softmax", "_safe_softmax", "_softmax_backward_data", {"x": x},
        lambda x: torch._safe_softmax(x, 1), ("x",),
    )  # fmt: skip
    yield (
        "log_softmax", "_log_softmax", "_log_softmax_backward_data", {"x": x},
        _along(torch.log_softmax), ("x",),
    )  # fmt: skip


def _along(run: Callable[..., Tensor]) -> Run:
    return lambda x: run(x, dim=1)


def _losses(dtype: torch.dtype) -> Iterator[Row]:
    x, t = floats(ROWS, WIDTH, dtype=dtype), index(ROWS, below=WIDTH)
    y = floats(ROWS, WIDTH, dtype=dtype)
    classes = {"x": x, "t": t}
    yield (
        "cross_entropy", "nll_loss_forward", "nll_loss_backward", classes,
        functional.cross_entropy, (),
    )  # fmt: skip
    yield (
        "cross_entropy of rows", "nll_loss_forward", "nll_loss_backward", classes,
        lambda x, t: functional.cross_entropy(x, t, reduction="none"), ("x", "t"),
    )  # fmt: skip
    yield (
        "mse_loss", "mse_loss", "mse_loss_backward", {"x": x, "t": y},
        functional.mse_loss, (),
    )  # fmt: skip
    yield (
        "bce_with_logits", "binary_cross_entropy_with_logits", "sigmoid", {"x": x, "t": y},
        functional.binary_cross_entropy_with_logits, (),
    )  # fmt: skip


def _attention(dtype: torch.dtype) -> Iterator[Row]:
    def of(*shape: int) -> Input:
        return floats(*shape, dtype=dtype)

    qkv = {name: of(3, 4, 65, 32) for name in ("q", "k", "v")}
    flash = "_scaled_dot_product_flash_attention_for_cpu"
    for name, how in (("sdpa", {}), ("sdpa causal", {"is_causal": True})):
        yield name, flash, f"{flash}_backward", qkv, _attend(how), ("q", "k", "v")
    masked = {**qkv, "m": flags(65, 65)}
    yield (
        "sdpa with mask", flash, f"{flash}_backward", masked,
        functional.scaled_dot_product_attention, (),
    )  # fmt: skip


def _attend(how: Mapping[str, Any]) -> Run:
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, **how)


def _convolutions(dtype: torch.dtype) -> Iterator[Row]:
    def of(*shape: int) -> Input:
        return floats(*shape, dtype=dtype)

    two = {"x": of(4, 8, 21, 23), "w": of(16, 8, 3, 3), "b": of(16)}
    forward, backward = "convolution", "convolution_backward"
    yield (
        "conv1d", forward, backward, {"x": of(4, 8, 101), "w": of(16, 8, 5), "b": of(16)},
        functional.conv1d, ("x",),
    )  # fmt: skip
    yield (
        "conv1d by channel", forward, backward, {"x": of(4, 24, 101), "w": of(24, 1, 4)},
        lambda x, w: functional.conv1d(x, w, groups=24, padding=3), ("x",),
    )  # fmt: skip
    yield (
        "conv2d", forward, backward, two,
        lambda x, w, b: functional.conv2d(x, w, b, padding=1), ("x",),
    )  # fmt: skip
    yield (
        "conv_transpose2d", forward, backward, {"x": of(4, 8, 21, 23), "w": of(8, 16, 3, 3)},
        lambda x, w: functional.conv_transpose2d(x, w, stride=2), ("x",),
    )  # fmt: skip
    yield (
        "conv3d", forward, backward, {"x": of(2, 4, 9, 11, 7), "w": of(6, 4, 3, 3, 3)},
        functional.conv3d, ("x",),
    )  # fmt: skip


def _images() -> Iterator[Row]:
    two, three = {"x": floats(4, 6, 21, 23)}, {"x": floats(4, 3, 9, 11, 7)}
    for dims, x in (("2d", two), ("3d", three)):
        pool = f"max_pool{dims}_with_indices"
        yield f"max_pool{dims}", pool, f"{pool}_backward", x, _pool(f"max_pool{dims}"), ()
        yield (
            f"avg_pool{dims}", f"avg_pool{dims}", f"avg_pool{dims}_backward", x,
            _pool(f"avg_pool{dims}"), (),
        )  # fmt: skip
        adaptive = f"adaptive_avg_pool{dims}"
        yield adaptive, f"_{adaptive}", f"_{adaptive}_backward", x, _pool(adaptive), ()
    for mode, op in (
        ("nearest", "upsample_nearest2d"),
        ("bilinear", "upsample_bilinear2d"),
        ("bicubic", "upsample_bicubic2d"),
    ):
        yield f"interpolate {mode}", op, f"{op}_backward", two, _interpolate(mode), ()
    constant = "constant_pad_nd"
    yield "pad constant", constant, constant, two, _pad("constant"), ()
    for mode, name in (("reflect", "reflection_pad2d"), ("replicate", "replication_pad2d")):
        yield f"pad {mode}", name, f"{name}_backward", two, _pad(mode), ()
    grid = {**two, "g": floats(4, 13, 14, 2)}
    sampler = "grid_sampler_2d"
    yield "grid_sample", sampler, f"{sampler}_backward", grid, _sample, ()
    yield "unfold", "im2col", "col2im", two, lambda x: functional.unfold(x, 3), ()
    yield "ctc_loss", "_ctc_loss", "_ctc_loss_backward", {"x": floats(50, 8, 20)}, _ctc, ()


def _pool(name: str) -> Run:
    return lambda x: getattr(functional, name)(x, 3)


def _interpolate(mode: str) -> Run:
    return lambda x: functional.interpolate(x, scale_factor=2.3, mode=mode)


def _pad(mode: str) -> Run:
    return lambda x: functional.pad(x, (2, 3, 1, 4), mode=mode)


def _sample(x: Tensor, g: Tensor) -> Tensor:
    return functional.grid_sample(x, g / 8, align_corners=False)


def _ctc(x: Tensor) -> Tensor:
    target = (torch.arange(8 * 10, device=x.device) % 19 + 1).view(8, 10)
    return functional.ctc_loss(
        x.log_softmax(2), target, torch.tensor([50] * 8), torch.tensor([10] * 8)
    )


def _unpooled() -> Iterator[Case]:
    x = {"x": floats(4, 6, 24, 24)}
    yield Case("max_unpool2d f32", "aten.max_unpool2d", x, _unpool)
    cube = {"x": floats(2, 3, 8, 8, 8)}
    yield Case("max_unpool3d f32", "aten.max_unpool3d", cube, _unpool3)


def _unpool(x: Tensor) -> Tensor:
    return functional.max_unpool2d(*functional.max_pool2d(x, 2, return_indices=True), (2, 2))


def _unpool3(x: Tensor) -> Tensor:
    return functional.max_unpool3d(*functional.max_pool3d(x, 2, return_indices=True), (2, 2, 2))
