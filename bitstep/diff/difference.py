"""What a comparison found, as frozen values: the contract between `diff` and those who show it.

1. `Difference` is the whole answer; `first` holds the causes, one per independent origin.
2. A `Cause` says of which kind the first difference is, where, why we think so, how sure that is.
3. `Shown` is the first step at which a metric differs, `Received` how a rank came to differ.

>>> Kind.ORIGIN.value
'origin'
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from bitstep.contract.manifest import Difference as KeyDifference
from bitstep.records import Outcome


class Kind(enum.StrEnum):
    """Kinds of first difference, in the order in which they are tested."""

    INITIAL = "initial state"
    DATA = "data"
    RANDOM = "random"
    CONFIGURATION = "configuration"
    COLLECTIVE = "collective"
    RECEIVER = "receiver"
    ORDER = "order"
    RECOMPUTE = "recompute"
    UNINITIALISED = "uninitialised read"
    UNSEEN = "unseen write"
    ORIGIN = "origin"
    MISSING = "missing or extra record"
    LOGICAL = "logical state"
    """Of runs in different layouts, whose rows cannot be paired."""


@dataclass(frozen=True, slots=True)
class Where:
    """The site of a difference; `step` is absolute."""

    step: int
    rank: int
    phase: str
    pass_: str
    microbatch: int
    module: str
    op: str
    occurrence: int
    slot: str
    attempt_a: int
    attempt_b: int
    part: str = "bits"
    """bits; of a quantized tensor the part: payload, scale ..."""


@dataclass(frozen=True, slots=True)
class Bits:
    """What one run recorded at a site."""

    digest: int
    dtype: str
    shape: tuple[int, ...]
    seq: int
    value: str | None = None
    """The number, of a row whose digest is the bits of one."""

    def __str__(self) -> str:
        return self.value if self.value is not None else f"{self.digest:016x}"


@dataclass(frozen=True, slots=True)
class Cause:
    """The first difference of one rank that nobody sent it."""

    kind: Kind
    where: Where
    title: str
    """One line: what differs, and where."""
    because: tuple[str, ...]
    """Sentences that lead to the cause, the most telling first."""
    sure: str
    """How sure this is, and what would look the same."""
    a: Bits | None
    b: Bits | None
    ranks: tuple[int, ...]
    """All ranks that part at this site."""
    equal_before: int
    """Records of this rank that were compared and equal before it."""
    pairing: str
    """How records of this step were paired."""
    hint: str = ""
    """What to do about it, where that is known."""


@dataclass(frozen=True, slots=True)
class Received:
    """A rank that differs because of what another sent, or later than the origin."""

    rank: int
    step: int
    phase: str
    op: str
    slot: str
    source: tuple[int, ...]
    """The ranks it came from; empty where no collective was recorded that says so."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The first step at which a metric, or the state root, differs."""

    name: str
    rank: int
    step: int
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an attempt that counts its steps from 0 lies on the absolute steps."""

    run: str
    """a or b."""
    attempt: int
    step: int
    how: str
    """A sentence without its end."""
    known: bool
    """False: nothing matched, and the place is assumed."""


@dataclass(frozen=True, slots=True)
class Covered:
    """What was compared."""

    ranks: tuple[int, ...]
    steps: tuple[int, int] | None
    """First and last absolute step that both runs have."""
    records: int
    """Records that were compared and equal."""
    level: str
    """The deepest level that both have; "" where it is not known."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The answer to "where do these two runs part?"."""

    outcome: Outcome
    title: str
    a: str
    b: str
    manifest: tuple[KeyDifference, ...]
    placed: tuple[Placed, ...]
    causes: tuple[Cause, ...]
    """In causal order; the first is the one to look at."""
    receivers: tuple[Received, ...]
    metrics: tuple[Shown, ...]
    state: Shown | None
    """The first step whose state roots differ."""
    covered: Covered
    notes: tuple[str, ...]
    """What was not observed or not compared, one line each."""
    damage: tuple[str, ...]
    reasons: tuple[str, ...]
    """Why it could not be told, where the outcome is UNVERIFIED."""
    hints: tuple[str, ...]
    """What to do next; a command comes first where there is one."""
