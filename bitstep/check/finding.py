"""What a check found, as frozen values: the contract between `check` and those who show it.

1. `Checked` is the whole answer; `findings` are in the order of steps.
2. A `Finding` says of which kind it is, where, since when, and how sure that is.
3. `Compared` counts what was compared: "nothing found" means no more than that.

>>> Kind.REPLICAS.value
'replicas'
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bitstep.records import Outcome


class Kind(enum.StrEnum):
    """What does not agree with what."""

    REPLICAS = "replicas"
    """Tensors that ranks hold in common."""
    COLLECTIVE = "collective"
    """What the members of a collective got."""
    GATHER = "gather"
    """A gathered tensor and its shards."""
    RECOMPUTE = "recompute"
    """A recomputed forward and the forward that it repeats."""
    WRITE = "write"
    """A tensor and what the last recorded write left in it."""
    EXPECTED = "expected"
    """The run and the one that it is expected to repeat."""


@dataclass(frozen=True, slots=True)
class Place:
    """The first record of a finding, as far as it has one."""

    phase: str
    module: str
    """A module, the name of a parameter, or the members of a collective."""
    op: str
    occurrence: int
    slot: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that should agree and does not, where it shows first."""

    kind: Kind
    attempt: int
    step: int
    """Absolute where that is known."""
    ranks: tuple[int, ...]
    """The ranks that are wrong, or, where `told` is False, all that disagree."""
    told: bool
    """Whether it can be told which ranks are wrong."""
    place: Place
    title: str
    """One line: what, on which ranks, since when."""
    because: tuple[str, ...] = ()
    """Sentences, the most telling first."""
    sure: str = ""
    """How sure this is, and what would look the same."""
    also: tuple[str, ...] = ()
    """What else disagrees at that step, as names."""


@dataclass(frozen=True, slots=True)
class Compared:
    """How many comparisons were made, of each sort."""

    replicas: int = 0
    """Readings of tensors that several ranks hold in common."""
    collectives: int = 0
    """Results of collectives that all members must get alike."""
    gathered: int = 0
    """Gathered tensors against their shards."""
    recomputed: int = 0
    """Records of recomputation against their forward."""
    writes: int = 0
    """Readings of tensors against what the last write left."""
    expected: int = 0
    """Records against the expected run."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a run says about itself."""

    outcome: Outcome
    title: str
    run: str
    expected: str | None
    findings: tuple[Finding, ...]
    compared: Compared
    ranks: tuple[int, ...]
    steps: tuple[int, int] | None
    """First and last step that were checked."""
    notes: tuple[str, ...]
    """What was not compared, one line each."""
    damage: tuple[str, ...]
    reasons: tuple[str, ...]
    """Why it could not be told, where the outcome is UNVERIFIED."""
    hints: tuple[str, ...]
    """What to do next; a command comes first where there is one."""


_SHOWN: Final = 6


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks for a person.

    >>> ranks_text((1,)), ranks_text((0, 1)), ranks_text((4, 5, 6, 9))
    ('rank 1', 'ranks 0 and 1', 'ranks 4 to 6 and 9')
    """
    words = [f"{first} to {last}" if last > first else str(first) for first, last in _runs(ranks)]
    if len(words) > _SHOWN:
        words = [*words[:_SHOWN], "others"]
    listed = ", ".join(words[:-1])
    start = "rank" if len(ranks) == 1 else "ranks"
    return f"{start} {listed} and {words[-1]}" if listed else f"{start} {words[-1]}"


def _runs(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of three and more neighbours; others alone."""
    found: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1] = (found[-1][0], rank)
        else:
            found.append((rank, rank))
    pairs = [[(first, first), (last, last)] if last == first + 1 else [(first, last)]
             for first, last in found]  # fmt: skip
    return [run for pair in pairs for run in pair]
