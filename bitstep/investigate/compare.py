"""Two arms, row by row: the first place where their traces part.

Every attempt of a run counts. A step that two attempts recorded (the one that was killed and the
one that went on from a checkpoint before it) must have the same rows in both; `start` rows belong
to one attempt and are left out.

>>> first_difference({}, {}) is None
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bitstep.errors import TraceError
from bitstep.records import Site
from bitstep.state.streams import STREAMS
from bitstep.trace.run import AttemptTrace

Bits = tuple[int, str, tuple[int, ...]]
"""Digest, dtype and shape: what must be equal."""
Rows = Mapping[Site, Bits]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two arms part first."""

    site: Site
    expected: Bits | None
    found: Bits | None

    def __str__(self) -> str:
        where = f"step {self.site.step}, {self.site.phase}, {self.site.slot}"
        rank = f", logical rank {self.site.rank}" if self.site.rank >= 0 else ""
        return f"{where}{rank}: {_show(self.expected)} against {_show(self.found)}"


@dataclass(frozen=True, slots=True)
class ArmRows:
    """All rows of an arm by site."""

    rows: Rows
    conflict: Difference | None
    """Where two attempts of the arm recorded the same site with other bits."""


def rows_of(attempt: AttemptTrace) -> Rows:
    """The rows of one attempt, `start` left out. Raises TraceError for damaged bytes.

    A stream that a kill cut off is not damaged: its rows up to the cut count.
    """
    damaged = [line for line in attempt.damage if not line.startswith("cut")]
    if damaged:
        raise TraceError(f"{attempt.trace.directory}: {damaged[0]}")
    return {
        record.site: (record.digest, record.dtype, record.shape)
        for record in attempt.trace.records()
        if record.site.phase != "start"
    }


def merge(attempts: Sequence[Rows]) -> ArmRows:
    """The attempts of one arm as one; they must agree where they overlap."""
    rows: dict[Site, Bits] = {}
    conflict = None
    for attempt in attempts:
        for site, bits in attempt.items():
            if rows.setdefault(site, bits) != bits:
                conflict = conflict or Difference(site, rows[site], bits)
    return ArmRows(rows, conflict)


def first_difference(expected: Rows, found: Rows) -> Difference | None:
    """The earliest site, by step and then by its place in the step, that is not equal in both."""
    order = {site: place for place, site in enumerate([*expected, *found])}
    parted = [site for site in order if expected.get(site) != found.get(site)]
    if not parted:
        return None
    first = min(parted, key=lambda site: (site.step, order[site]))
    return Difference(first, expected.get(first), found.get(first))


def streams_that_differ(expected: Rows, found: Rows) -> tuple[str, ...]:
    """The streams whose roots are not equal at some step that `found` recorded."""
    return tuple(
        stream
        for stream in STREAMS
        if any(
            site.slot == f"root.{stream}" and expected.get(site) != bits
            for site, bits in found.items()
        )
    )


def _show(bits: Bits | None) -> str:
    return "no row" if bits is None else f"{bits[0]:016x}"
