"""Cases: reading and writing by index, with indices that are there once and several times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bitstep.investigate.survey.case import SHORT, Case
from bitstep.investigate.survey.inputs import flags, floats, index, order

MANY: Final = 100_000
FEW: Final = 50
WIDE: Final = 16


def cases() -> Iterator[Case]:
    """All of them."""
    for dtype in (torch.float32, torch.bfloat16):
        yield from _flat(dtype)
        yield from _by_row(dtype)
        yield from _gradients(dtype)
        yield from _embeddings(dtype)
    yield from _flat(torch.float64)
    yield from _once()
    yield from _masks()


def _flat(dtype: torch.dtype) -> Iterator[Case]:
    short = SHORT[dtype]
    wanted = {"x": floats(FEW, dtype=dtype), "i": index(MANY, below=FEW)}
    wanted["v"] = floats(MANY, dtype=dtype)
    for name, (op, run) in _FLAT.items():
        often = op in ("index_put_", "put_", "index_copy_")
        yield Case(f"{name} {short}", f"aten.{op}", wanted, run, often=often)


_FLAT: Final[Mapping[str, tuple[str, Callable[..., Tensor]]]] = {
    "index_put_ accumulate, duplicates": (
        "index_put_",
        lambda x, i, v: x.clone().index_put_((i,), v, accumulate=True),
    ),
    "index_put_ duplicates": ("index_put_", lambda x, i, v: x.clone().index_put_((i,), v)),
    "put_ accumulate, duplicates": ("put_", lambda x, i, v: x.clone().put_(i, v, accumulate=True)),
    "put_ duplicates": ("put_", lambda x, i, v: x.clone().put_(i, v)),
    "index_copy_ duplicates": ("index_copy_", lambda x, i, v: x.clone().index_copy_(0, i, v)),
    "index_add_ duplicates": ("index_add_", lambda x, i, v: x.clone().index_add_(0, i, v)),
    "scatter_ duplicates": ("scatter_", lambda x, i, v: x.clone().scatter_(0, i, v)),
    "scatter_add_ duplicates": ("scatter_add_", lambda x, i, v: x.clone().scatter_add_(0, i, v)),
    "scatter_reduce_ mean, duplicates": (
        "scatter_reduce_",
        lambda x, i, v: x.clone().scatter_reduce_(0, i, v, "mean"),
    ),
    "scatter_reduce_ prod, duplicates": (
        "scatter_reduce_",
        lambda x, i, v: x.clone().scatter_reduce_(0, i, v, "prod"),
    ),
    "index_reduce_ mean, duplicates": (
        "index_reduce_",
        lambda x, i, v: x.clone().index_reduce_(0, i, v, "mean"),
    ),
}


def _by_row(dtype: torch.dtype) -> Iterator[Case]:
    short = SHORT[dtype]
    rows = {"x": floats(FEW, WIDE, dtype=dtype), "i": index(MANY // WIDE, below=FEW)}
    rows["v"] = floats(MANY // WIDE, WIDE, dtype=dtype)
    every = {**rows, "i": index(MANY // WIDE, WIDE, below=FEW)}
    for name, (op, run) in _ROWS.items():
        often = op in ("index_put_", "index_copy_")
        yield Case(f"{name} {short}", f"aten.{op}", rows, run, often=often)
    for name in ("scatter_ duplicates", "scatter_add_ duplicates"):
        op, run = _FLAT[name]
        yield Case(f"{name} of rows {short}", f"aten.{op}", every, run)


_ROWS: Final[Mapping[str, tuple[str, Callable[..., Tensor]]]] = {
    f"{name} of rows": _FLAT[name]
    for name in (
        "index_put_ accumulate, duplicates",
        "index_put_ duplicates",
        "index_copy_ duplicates",
        "index_add_ duplicates",
    )
}


def _gradients(dtype: torch.dtype) -> Iterator[Case]:
    short = SHORT[dtype]
    wanted = {"x": floats(FEW, WIDE, dtype=dtype), "i": index(MANY // WIDE, below=FEW)}
    wide = {**wanted, "i": index(MANY // WIDE, WIDE, below=FEW)}
    for name, (op, run) in _GRADIENTS.items():
        inputs = wide if name == "gather" else wanted
        often = op in ("index_put", "put")
        yield Case(f"{name} backward {short}", f"aten.{op}", inputs, run, True, often=often)


_GRADIENTS: Final[Mapping[str, tuple[str, Callable[..., Tensor]]]] = {
    "x[i]": ("index_put", lambda x, i: x[i]),
    "x[i, j]": ("index_put", lambda x, i: x[i, i % WIDE]),
    "take": ("put", lambda x, i: x.take(i)),
    "gather": ("scatter_add", lambda x, i: x.gather(0, i)),
    "index_select": ("index_add", lambda x, i: x.index_select(0, i)),
    "repeat_interleave": ("index_add", lambda x, i: x.repeat_interleave(i[:FEW] + 90, dim=0)),
}


def _embeddings(dtype: torch.dtype) -> Iterator[Case]:
    short = SHORT[dtype]
    wanted = {"w": floats(FEW, WIDE, dtype=dtype), "i": index(MANY // WIDE, below=FEW)}
    yield Case(f"embedding {short}", "aten.embedding", wanted, _embedding(), rows=("i",))
    dense = "aten.embedding_dense_backward"
    yield Case(f"embedding backward {short}", dense, wanted, _embedding(), True)
    by_frequency = _embedding(scale_grad_by_freq=True)
    yield Case(f"embedding by frequency backward {short}", dense, wanted, by_frequency, True)
    sparse = _embedding(sparse=True)
    yield Case(f"embedding sparse backward {short}", "aten.embedding", wanted, sparse, True)
    for mode in ("sum", "mean", "max"):
        bag = _bag(mode)
        op = "aten._embedding_bag_forward_only"
        yield Case(f"embedding_bag {mode} {short}", op, wanted, bag)
        op = "aten._embedding_bag_backward"
        yield Case(f"embedding_bag {mode} backward {short}", op, wanted, bag, True)


def _embedding(**how: Any) -> Callable[..., Tensor]:
    return lambda w, i: functional.embedding(i, w, **how)


def _bag(mode: str) -> Callable[..., Tensor]:
    return lambda w, i: functional.embedding_bag(
        i, w, torch.arange(0, i.numel(), 7, device=i.device), mode=mode
    )


def _once() -> Iterator[Case]:
    wanted = {"x": floats(MANY), "i": order(MANY), "v": floats(MANY)}
    for name in (
        "index_put_ accumulate, duplicates",
        "index_put_ duplicates",
        "put_ accumulate, duplicates",
        "put_ duplicates",
        "index_copy_ duplicates",
        "scatter_ duplicates",
    ):
        op, run = _FLAT[name]
        yield Case(name.replace("duplicates", "each once") + " f32", f"aten.{op}", wanted, run)
    yield Case("index", "aten.index", wanted, lambda x, i, v: x[i], rows=("i",))


def _masks() -> Iterator[Case]:
    wanted = {"x": floats(MANY), "m": flags(MANY), "v": floats(MANY)}
    yield Case("masked_select", "aten.masked_select", wanted, lambda x, m, v: x.masked_select(m))
    yield Case("masked_scatter", "aten.masked_scatter", wanted, _masked_scatter)
    yield Case("x[mask] backward f32", "aten.index_put", wanted, lambda x, m, v: x[m], True)
    yield Case("roll", "aten.roll", wanted, lambda x, m, v: x.roll(7))
    yield Case("flip", "aten.flip", wanted, lambda x, m, v: x.flip(0))


def _masked_scatter(x: Tensor, m: Tensor, v: Tensor) -> Tensor:
    return x.masked_scatter(m, v)
