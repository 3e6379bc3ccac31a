"""How fast the fingerprint is, beside xxh3, torch.hash_tensor and a copy, on one core.

1. For float32, bfloat16 and float8 a large tensor and one of 4 KB are made.
2. The subjects take turns in one process, so that a busy machine slows all of them.
3. A row holds medians; `ratio` is the median over turns of xxh3's time by the subject's.

The kernels are compiled for this processor, or for AVX2 only in a process that was started with
NUMBA_CPU_NAME=haswell and an empty NUMBA_CPU_FEATURES. `Row.target` says which.

>>> bench_fingerprint(megabytes=64)[0].subject  # doctest: +SKIP
'xxh3_64'
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from llvmlite.binding import get_host_cpu_name

from bitstep.errors import UsageError
from bitstep.fingerprint import fingerprint, warm

_DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn)
_SMALL = 4096


@dataclass(frozen=True, slots=True)
class Row:
    """One subject on one tensor, everything from the tensor to the result included."""

    subject: str
    """xxh3_64, fingerprint, torch.hash_tensor or copy."""
    dtype: str
    nbytes: int
    gb_per_s: float
    """10^9 bytes a second, from the median time."""
    microseconds: float
    """Median time of one call."""
    ratio: float
    """Speed by that of xxh3_64, measured in turn."""
    target: str
    """Processor for which Numba compiles: the host's name, or NUMBA_CPU_NAME."""


def bench_fingerprint(megabytes: int = 64, repeats: int = 15) -> tuple[Row, ...]:
    """Measure this process, on one thread.

    Args:
        megabytes: size of the large tensors, in units of 2^20 bytes.
        repeats: turns that each subject takes.

    Raises:
        UsageError: xxhash is not installed, an argument is below 1, or half a target is set.
    """
    if megabytes < 1 or repeats < 1:
        raise UsageError(f"megabytes {megabytes} and repeats {repeats}: both must be at least 1")
    # Measured: the name alone leaves the host's features on, AVX-512 among them.
    if "NUMBA_CPU_NAME" in os.environ and "NUMBA_CPU_FEATURES" not in os.environ:
        raise UsageError(
            "NUMBA_CPU_NAME without NUMBA_CPU_FEATURES keeps the features of this processor:"
            " set both, the second to '' for those of the named one"
        )
    xxh3 = _xxh3()
    warm()
    rows: list[Row] = []
    with _one_thread():
        for nbytes in (megabytes << 20, _SMALL):
            for dtype in _DTYPES:
                rows += _rows(_tensor(nbytes, dtype), xxh3, repeats)
    return tuple(rows)


def _xxh3() -> Callable[[Any], int]:
    try:
        import xxhash
    except ImportError:
        raise UsageError(
            "the yardstick xxhash is not installed: pip install 'bitstep[bench]'"
        ) from None
    result: Callable[[Any], int] = xxhash.xxh3_64_intdigest
    return result


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tensor(nbytes: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(nbytes // dtype.itemsize, generator=generator).to(dtype)


def _subjects(tensor: torch.Tensor, xxh3: Callable[[Any], int]) -> dict[str, Callable[[], Any]]:
    target = torch.empty_like(tensor)
    subjects: dict[str, Callable[[], Any]] = {
        "xxh3_64": lambda: xxh3(tensor.view(torch.uint8).numpy()),
        "fingerprint": lambda: fingerprint(tensor),
        "copy": lambda: target.copy_(tensor),
    }
    if tensor.dtype != torch.float8_e4m3fn:  # hash_tensor has no float8.
        subjects["torch.hash_tensor"] = lambda: torch.hash_tensor(tensor)
    return subjects


def _rows(tensor: torch.Tensor, xxh3: Callable[[Any], int], repeats: int) -> list[Row]:
    subjects = _subjects(tensor, xxh3)
    calls = max(1, min(1000, (1 << 22) // tensor.nbytes))
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(repeats + 1):
        for name, call in subjects.items():
            seconds = _seconds(call, calls)
            if turn:  # The first turn only warms caches.
                times[name].append(seconds)
    return [_row(name, tensor, taken, times["xxh3_64"]) for name, taken in times.items()]


def _seconds(call: Callable[[], Any], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def _row(name: str, tensor: torch.Tensor, taken: list[float], yardstick: list[float]) -> Row:
    median = statistics.median(taken)
    return Row(
        subject=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        nbytes=tensor.nbytes,
        gb_per_s=tensor.nbytes / median / 1e9,
        microseconds=median * 1e6,
        ratio=statistics.median(y / t for y, t in zip(yardstick, taken, strict=True)),
        target=os.environ.get("NUMBA_CPU_NAME") or get_host_cpu_name(),
    )
