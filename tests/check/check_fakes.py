"""Recordings of a few rows: a data-parallel program of two parameters, with faults to order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from bitstep.records import Place, Record, Site
from bitstep.trace import TraceWriter

LEVELS = {"step": 0, "phase": 1, "module": 2, "op": 3}
Faults = Mapping[tuple[int, int, str], int]
"""(rank, step, "SLOT NAME OCCURRENCE") -> digest."""


def bits(*what: object) -> int:
    """A number that stands for the bits of something."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "little")


class Step:
    """The rows of one step of one rank."""

    def __init__(self, rank: int, step: int, faults: Faults | None = None) -> None:
        self.rank, self.step = rank, step
        self.faults = faults or {}
        self.rows: list[tuple[Site, int, str, tuple[int, ...], Place | None, int, int]] = []

    def add(
        self, phase: str, slot: str, module: str, digest: int, occurrence: int = 0, op: str = "",
        pass_: str = "primary", microbatch: int = -1, dtype: str = "float32",
        shape: tuple[int, ...] = (4,), place: Place | None = None, writer: int = -1, flags: int = 0,
    ) -> Step:  # fmt: skip
        digest = self.faults.get((self.rank, self.step, f"{slot} {module} {occurrence}"), digest)
        site = Site(self.step, self.rank, phase, slot, pass_, microbatch, module, op, occurrence)
        self.rows.append((site, digest, dtype, shape, place, writer, flags))
        return self

    def begin(self, level: str = "phase", world: int | None = None) -> Step:
        phase = "data" if self.step else "start"
        self.add(phase, "level", "", LEVELS[level], dtype="int64", shape=())
        if world is not None and not self.step:
            self.add(phase, "world", "", world, dtype="int64", shape=())
        return self

    def records(self, first: int) -> Iterator[Record]:
        for at, (site, digest, dtype, shape, place, writer, flags) in enumerate(self.rows):
            yield Record(first + at, site, digest % 2**64, dtype, shape, place, -1, writer, flags)


def write(
    run: Path, ranks: Iterable[int], steps: Iterable[int], of: Callable[[int, int], Step],
    close: bool = True, attempt: int = 0,
) -> Path:  # fmt: skip
    """Write a recording whose step `s` of rank `r` holds the rows of `of(r, s)`."""
    for rank in ranks:
        trace = TraceWriter(run / f"attempt-{attempt:03d}", rank)
        seq = 0
        for step in steps:
            rows = list(of(rank, step).records(seq))
            seq += len(rows)
            trace.write(rows)
            trace.end_step(step, bits("root", step))
        if close:
            trace.close()
    return run


PARAMETERS = ("Net.0.weight", "Net.0.bias")


def data_parallel(world: int, faults: Faults | None = None) -> Callable[[int, int], Step]:
    """A healthy data-parallel program of `world` ranks at level phase, but for `faults`.

    A fault stays: what is other bits once is other bits until the end, but for gradients, which
    are reduced anew.
    """
    kept: dict[tuple[int, str], int] = {}

    def of(rank: int, step: int) -> Step:
        found = Step(rank, step).begin(world=world)

        def add(phase: str, slot: str, name: str, digest: int, occurrence: int) -> None:
            key = (rank, step, f"{slot} {name} {occurrence}")
            other = (faults or {}).get(key)
            if other is not None and slot != "grad":
                kept[rank, f"{slot} {name}"] = other
            if slot == "grad":
                digest = digest if other is None else other
            elif (rank, f"{slot} {name}") in kept:
                # Updates go on from the other bits.
                digest = bits(digest, kept[rank, f"{slot} {name}"])
            found.add(phase, slot, name, digest, occurrence)

        if not step:
            for name in PARAMETERS:
                add("start", "param", name, bits("param", name, 0), 0)
            return found
        found.add("data", "rng", "torch", bits("rng", rank, step))
        found.add("data", "batch", "", bits("batch", rank, step), microbatch=0)
        for name in PARAMETERS:
            add("optimizer", "grad", name, bits("grad", name, step), 0)
        for occurrence, at in ((0, step - 1), (1, step)):
            for name in PARAMETERS:
                add("optimizer", "param", name, bits("param", name, at), occurrence)
                if at:
                    add("optimizer", "state.exp_avg", name, bits("avg", name, at), occurrence)
        return found

    return of
