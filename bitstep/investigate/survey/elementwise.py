"""Cases: operations that compute each element by itself, in place or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bitstep.investigate.survey.case import SHORT, Case
from bitstep.investigate.survey.inputs import flags, floats, positive

LENGTH: Final = 200_003
"""Elements: more than threads take one by one, and no multiple of a vector."""

_UNARY: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-1, 1),
    "cos": torch.cos,
    "elu": functional.elu,
    "erf": torch.erf,
    "exp": torch.exp,
    "gelu": functional.gelu,
    "hardtanh": functional.hardtanh,
    "leaky_relu": functional.leaky_relu,
    "log_sigmoid_forward": functional.logsigmoid,
    "mish": functional.mish,
    "neg": torch.neg,
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "sin": torch.sin,
    "softplus": functional.softplus,
    "tanh": torch.tanh,
    "triu": lambda x: x[:200_000].view(400, 500).triu(),
    "tril": lambda x: x[:200_000].view(400, 500).tril(),
}
_POSITIVE: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "log": torch.log,
    "log1p": torch.log1p,
    "pow": lambda x: x**2.5,
    "rsqrt": torch.rsqrt,
    "sqrt": torch.sqrt,
}
_BINARY: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "add": torch.add,
    "addcdiv": lambda x, y: torch.addcdiv(x, y, x.abs() + 1, value=0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.3),
    "cat": lambda x, y: torch.cat([x, y]),
    "div": torch.div,
    "lerp": lambda x, y: torch.lerp(x, y, 0.1),
    "maximum": torch.maximum,
    "mul": torch.mul,
    "stack": lambda x, y: torch.stack([x, y]),
    "sub": torch.sub,
}
_BACKWARD: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "gelu_backward": functional.gelu,
    "sigmoid_backward": torch.sigmoid,
    "silu_backward": functional.silu,
    "tanh_backward": torch.tanh,
    "threshold_backward": torch.relu,
}
_MATRICES: Final = ("triu", "tril", "cat", "stack")
"""Their rows are not elements."""


def cases() -> Iterator[Case]:
    """All of them, in float32 and bfloat16, some in float64."""
    for dtype in (torch.float32, torch.bfloat16):
        yield from _simple(dtype)
        yield from _others(dtype)
    for name in ("exp", "sigmoid", "silu", "gelu"):
        x = floats(LENGTH, dtype=torch.float64)
        yield Case(f"{name} f64", f"aten.{name}", {"x": x}, _UNARY[name], rows=("x",))


def _simple(dtype: torch.dtype) -> Iterator[Case]:
    x, y, p = (make(LENGTH, dtype=dtype) for make in (floats, floats, positive))
    tables: tuple[tuple[Mapping[str, Callable[..., Tensor]], dict[str, Any], bool], ...] = (
        (_UNARY, {"x": x}, False),
        (_POSITIVE, {"x": p}, False),
        (_BINARY, {"x": x, "y": y}, False),
        (_BACKWARD, {"x": x}, True),
    )
    for table, wanted, backward in tables:
        for name, run in table.items():
            rows = () if backward or name in _MATRICES else tuple(wanted)
            op, shown = f"aten.{name}", f"{name} {SHORT[dtype]}"
            yield Case(shown, op, wanted, run, backward=backward, rows=rows)


def _others(dtype: torch.dtype) -> Iterator[Case]:
    short = SHORT[dtype]
    x, y = floats(LENGTH, dtype=dtype), floats(LENGTH, dtype=dtype)
    both = {"x": x, "y": y}
    yield Case(
        f"gelu tanh {short}",
        "aten.gelu",
        {"x": x},
        lambda x: functional.gelu(x, approximate="tanh"),
        rows=("x",),
    )
    chosen = {"m": flags(LENGTH), **both}
    yield Case(f"where {short}", "aten.where", chosen, torch.where, rows=("m", "x", "y"))
    yield Case(
        f"masked_fill {short}",
        "aten.masked_fill",
        {"x": x, "m": flags(LENGTH)},
        lambda x, m: x.masked_fill(m, 0.5),
        rows=("x", "m"),
    )
    other = torch.bfloat16 if dtype == torch.float32 else torch.float32
    yield Case(f"to {short}", "aten._to_copy", {"x": x}, lambda x: x.to(other), rows=("x",))
    yield Case(f"add_ mul_ {short}", "aten.add_", both, _in_place, rows=("x", "y"))
    for name, run in _FOREACH.items():
        yield Case(f"{name} {short}", f"aten.{name}", both, run)


def _in_place(x: Tensor, y: Tensor) -> Tensor:
    return x.clone().add_(y, alpha=0.3).mul_(y).div_(3).sub_(x).addcmul_(x, y).lerp_(y, 0.1)


def _lists(x: Tensor, y: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    return list(torch.split(x.clone(), 70_001)), list(torch.split(y, 70_001))


def _foreach(call: Callable[[list[Tensor], list[Tensor]], Any]) -> Callable[..., list[Tensor]]:
    def run(x: Tensor, y: Tensor) -> list[Tensor]:
        ours, theirs = _lists(x, y)
        call(ours, theirs)
        return ours

    return run


_FOREACH: Final = {
    "_foreach_add_": _foreach(lambda a, b: torch._foreach_add_(a, b, alpha=0.3)),
    "_foreach_addcdiv_": _foreach(lambda a, b: torch._foreach_addcdiv_(a, b, b, value=0.3)),
    "_foreach_addcmul_": _foreach(lambda a, b: torch._foreach_addcmul_(a, b, b, value=0.3)),
    "_foreach_lerp_": _foreach(lambda a, b: torch._foreach_lerp_(a, b, 0.1)),
    "_foreach_mul_": _foreach(lambda a, b: torch._foreach_mul_(a, 1.1)),
}
