"""Cases: sums and other reductions, scans, sorting and counting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from bitstep.investigate.survey.case import SHORT, Case
from bitstep.investigate.survey.inputs import floats, index, positive, ties

LENGTH: Final = 200_003
SHAPE: Final = (611, 777)
_ALL: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_TWO: Final = (torch.float32, torch.bfloat16)


def cases() -> Iterator[Case]:
    """All of them."""
    for dtype in _ALL:
        x = {"x": floats(LENGTH, dtype=dtype)}
        yield Case(f"sum {SHORT[dtype]}", "aten.sum", x, torch.sum)
        yield Case(f"mean {SHORT[dtype]}", "aten.mean", x, torch.mean)
        yield Case(f"dot {SHORT[dtype]}", "aten.dot", {**x, "y": x["x"]}, torch.dot)
    for dtype in _TWO:
        yield from _reduced(dtype)
    yield from _ordered()
    yield from _counted()


def _reduced(dtype: torch.dtype) -> Iterator[Case]:
    short = SHORT[dtype]
    line, table = {"x": floats(LENGTH, dtype=dtype)}, {"x": floats(*SHAPE, dtype=dtype)}
    for name, run in _LINE.items():
        yield Case(f"{name} {short}", f"aten.{name}", line, run)
    for name, (op, run, rows) in _TABLE.items():
        yield Case(f"{name} {short}", f"aten.{op}", table, run, rows=("x",) if rows else ())
    backward = {"cumsum": torch.cumsum, "cumprod": torch.cumprod}
    for name, scan in backward.items():
        yield Case(f"{name} backward {short}", f"aten.{name}", table, _along(scan), backward=True)
    norms = lambda x: torch._foreach_norm(list(x.split(70_001)))  # noqa: E731
    yield Case(f"_foreach_norm {short}", "aten._foreach_norm", line, norms)
    yield Case(f"prod {short}", "aten.prod", {"x": positive(100, dtype=dtype)}, torch.prod)


def _along(scan: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: scan(x, dim=1)


_LINE: Final[Mapping[str, Callable[[Tensor], Any]]] = {
    "amax": torch.amax,
    "linalg_vector_norm": torch.linalg.vector_norm,
    "std": torch.std,
    "var": torch.var,
    "argmax": torch.argmax,
    "cumsum": lambda x: x.cumsum(0),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "logsumexp": lambda x: x.logsumexp(0),
}
_TABLE: Final[Mapping[str, tuple[str, Callable[[Tensor], Any], bool]]] = {
    "sum of rows": ("sum", lambda x: x.sum(1), True),
    "sum of columns": ("sum", lambda x: x.sum(0), False),
    "mean of rows": ("mean", lambda x: x.mean(1), True),
    "amin of columns": ("amin", lambda x: x.amin(0), False),
    "cumsum of rows": ("cumsum", lambda x: x.cumsum(1), True),
    "cumprod of rows": ("cumprod", lambda x: x.cumprod(1), True),
    "norm of rows": ("linalg_vector_norm", lambda x: torch.linalg.vector_norm(x, dim=1), True),
}


def _ordered() -> Iterator[Case]:
    x = {"x": ties(*SHAPE)}
    for name, run in _TIES.items():
        yield Case(f"{name} ties", f"aten.{name}", x, run, rows=("x",))
    line = {"x": ties(LENGTH)}
    yield Case("sort ties, one row", "aten.sort", line, torch.sort)
    yield Case("topk ties, one row", "aten.topk", line, lambda x: x.topk(1000))
    yield Case("median ties, one row", "aten.median", line, torch.median)
    yield Case("unique ties", "aten._unique2", line, lambda x: torch.unique(x, return_inverse=True))
    yield Case("nonzero", "aten.nonzero", line, torch.nonzero)


_TIES: Final[Mapping[str, Callable[[Tensor], Any]]] = {
    "argmax": lambda x: x.argmax(1),
    "kthvalue": lambda x: x.kthvalue(300, 1),
    "max": lambda x: x.max(1),
    "median": lambda x: x.median(1),
    "min": lambda x: x.min(1),
    "mode": lambda x: x.mode(1),
    "sort": lambda x: x.sort(1),
    "topk": lambda x: x.topk(100, 1),
}


def _counted() -> Iterator[Case]:
    many, weights = index(LENGTH, below=50), floats(LENGTH)
    yield Case("bincount", "aten.bincount", {"i": many}, lambda i: i.bincount())
    yield Case(
        "bincount weights", "aten.bincount", {"i": many, "x": weights}, lambda i, x: i.bincount(x)
    )
    yield Case("histc", "aten.histc", {"x": weights}, lambda x: x.histc(50))
    yield Case(
        "bucketize",
        "aten.bucketize",
        {"x": weights},
        lambda x: torch.bucketize(x, torch.arange(-8.0, 8.0, device=x.device)),
        rows=("x",),
    )
