"""One case along every axis, in this process: repeats, threads, alignment, rows.

1. It is run again and again at each number of threads, without the deterministic flag and with it.
   A race is only seen by chance: what varied once, or is known to, is run `MOST` times.
2. Where repeats agree, the numbers of threads are compared with each other.
3. At one thread its floating inputs are laid at each offset within a flat buffer, and its rows are
   computed a few at a time instead of all together.

>>> measure(Case("abs", "aten.abs", {"x": floats(9)}, torch.abs)).threads
'aaaa'
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from bitstep.contract.survey import OFFSETS, Counts, Measured, partition
from bitstep.fingerprint import fingerprint, root
from bitstep.investigate.survey.case import Case, Tensors, operations

THREADS: Final = (1, 2, 4, 8)
REPEATS: Final = 8
MOST: Final = 64
ROWS: Final = (1, 2, 3, 4, 5, 8, 16, 63)
MOST_ROWS: Final = 512
Bits = dict[str, str]
"""Result to its digest."""


def plain(case: Case, device: str = "cpu") -> Measured:
    """Its bits alone, at one thread."""
    try:
        with _threads(1):
            return Measured(op=case.op, bits=whole(bits(case.compute(case.inputs(device)))))
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        return Measured(op=case.op, failed=line(error))


def measure(case: Case, device: str = "cpu") -> Measured:
    """All that can be found out in this process."""
    found = plain(case, device)
    if found.failed:
        return found
    inputs = case.inputs(device)
    threads = THREADS if device == "cpu" else THREADS[:1]
    off = {count: _repeated(case, inputs, count) for count in threads}
    on, raises = _with_flag(case, inputs, threads)
    steady = next((axis for axis in (off, on) if axis and all(map(_agrees, axis.values()))), {})
    by_threads = [runs[0] for runs in steady.values()]
    by_offset = _offsets(case, inputs) if _agrees(off[1]) else []
    parts = {
        "off": _parts(*off.values()),
        "threads": _parts(by_threads),
        "alignment": _parts(by_offset),
    }
    return Measured(
        op=case.op,
        ops=operations(case, inputs),
        bits=found.bits,
        off=_counted(off),
        on=_counted(on),
        raises=raises,
        threads=partition(map(whole, by_threads)),
        alignment=partition(map(whole, by_offset)),
        rows=_rows(case, inputs) if _agrees(off[1]) else "",
        parts={axis: names for axis, names in parts.items() if names},
    )


def bits(results: Tensors) -> Bits:
    """The digest of each result."""
    return {name: f"{root({name: fingerprint(t)}):016x}" for name, t in results.items()}


def whole(results: Bits) -> str:
    """One digest of all results."""
    return hashlib.blake2b(repr(sorted(results.items())).encode(), digest_size=8).hexdigest()


def line(error: Exception) -> str:
    """The first line of what it said, of 200 characters at most."""
    said = f"{type(error).__name__}: {error}".splitlines()[0]
    return "".join(c if c.isprintable() else " " for c in said)[:200]


def _repeated(case: Case, inputs: Tensors, threads: int) -> list[Bits]:
    with _threads(threads):
        found = [bits(case.compute(inputs)) for _ in range(REPEATS)]
        if (case.often and threads > 1) or not _agrees(found):
            found += [bits(case.compute(inputs)) for _ in range(MOST - REPEATS)]
    return found


def _with_flag(
    case: Case, inputs: Tensors, threads: Sequence[int]
) -> tuple[dict[int, list[Bits]], str]:
    torch.use_deterministic_algorithms(True)
    try:
        return {count: _repeated(case, inputs, count) for count in threads}, ""
    except RuntimeError as error:
        return {}, line(error)
    finally:
        torch.use_deterministic_algorithms(False)


def _offsets(case: Case, inputs: Tensors) -> list[Bits]:
    with _threads(1):
        return [
            bits(case.compute({name: _moved(t, offset) for name, t in inputs.items()}))
            for offset in range(OFFSETS)
        ]


def _moved(tensor: Tensor, offset: int) -> Tensor:
    """The same values, `offset` elements after the start of an allocation, which is aligned."""
    if not tensor.is_floating_point():
        return tensor
    flat = tensor.new_empty(tensor.numel() + offset)[offset:]
    return flat.copy_(tensor.reshape(-1)).view(tensor.shape)


def _rows(case: Case, inputs: Tensors) -> str:
    if not case.rows:
        return ""
    with _threads(1):
        together = case.compute(inputs)
        return "".join("=" if _equal_rows(case, inputs, together, m) else "x" for m in ROWS)


def _equal_rows(case: Case, inputs: Tensors, together: Tensors, count: int) -> bool:
    """Whether the first rows have the same bits when they are computed `count` at a time."""
    length = min(MOST_ROWS, *(len(inputs[name]) for name in case.rows)) // count * count
    parts = [
        case.compute(
            {n: t[at : at + count].clone() if n in case.rows else t for n, t in inputs.items()}
        )
        for at in range(0, length, count)
    ]
    return all(
        bits({name: torch.cat([part[name] for part in parts])}) == bits({name: full[:length]})
        for name, full in together.items()
        if parts
    )


def _agrees(runs: Sequence[Bits]) -> bool:
    return all(run == runs[0] for run in runs)


def _counted(axis: dict[int, list[Bits]]) -> Counts:
    return tuple((len(set(map(whole, runs))), len(runs)) for runs in axis.values())


def _parts(*axes: Sequence[Bits]) -> tuple[str, ...]:
    """Names of the results that differ within one of the axes; () of a single result."""
    found = {
        name
        for runs in axes
        for run in runs
        for name in run
        if len(run) > 1 and run[name] != runs[0][name]
    }
    return tuple(sorted(found))


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
