"""The nouns that rooms hand to each other, as frozen values. Imports nothing but the language.

>>> Site(step=3, rank=-1, phase="clip", slot="metric.grad_norm").slot
'metric.grad_norm'
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

WHOLE_RUN = -1
"""The rank of a record that belongs to no single logical rank: a root, a reduced metric."""


class Fingerprint(NamedTuple):
    """The bits of one logical tensor: equal fingerprints mean equal dtype, shape and raw bits.

    A named tuple and not a dataclass: it is made for every small tensor, where 0.5 us counts.
    """

    sum: int
    """Sum of the definition, an unsigned 64-bit number."""
    dtype: str
    """Name without "torch.": "float32", "bfloat16", "float8_e4m3fn"."""
    shape: tuple[int, ...]
    """Logical shape, of the whole tensor even where a process holds a part."""

    def __str__(self) -> str:
        return f"{self.sum:016x}"


class Box(NamedTuple):
    """A part that is a slice of its logical tensor along every dimension. Units: elements."""

    shape: tuple[int, ...]
    """Shape of the logical tensor."""
    offsets: tuple[int, ...]
    """First element of the part, per dimension."""
    sizes: tuple[int, ...]
    """Shape of the part."""


class FlatRange(NamedTuple):
    """A part that is a range of the bytes of its logical tensor in row-major order."""

    shape: tuple[int, ...]
    """Shape of the logical tensor."""
    start: int
    """First byte of the part."""
    nbytes: int
    """Bytes in the part."""


Place = Box | FlatRange


class Part(NamedTuple):
    """What a part contributes to the fingerprint of its logical tensor.

    Parts that cover the tensor once add up to it, in any order: sums modulo 2^64, bytes in
    integers, so that a lost or doubled part is an error and not another fingerprint.
    """

    sum: int
    nbytes: int


class Site(NamedTuple):
    """Where a record belongs; what aligns two runs. The order within a rank is `Record.seq`."""

    step: int
    """Optimizer update, counted absolutely over the attempts of a run, from 1. 0: before any."""
    rank: int
    """Logical rank, never a process; WHOLE_RUN for what belongs to none."""
    phase: str
    """start, data, forward, backward, exchange, reduce, scale, clip, optimizer, gather,
    checkpoint or eval."""
    slot: str
    """in.0, out.0, mutated.1, param, grad, state.exp_avg, rng, args, batch, metric.loss, root."""
    pass_: str = "primary"
    """primary, recompute, input-grad or weight-grad."""
    microbatch: int = -1
    """Microbatch within the step, or -1."""
    module: str = ""
    """Model and module path, or the name of a parameter."""
    op: str = ""
    occurrence: int = 0
    """Counts equal sites within (step, phase, pass, microbatch, module)."""
    part: str = "bits"
    """bits; of a quantized tensor payload, scale, amax, meta, or payload.column ..."""


class Record(NamedTuple):
    """One row of a trace."""

    seq: int
    """Order within the stream of a process; never compared between processes."""
    site: Site
    digest: int
    """Sum of the fingerprint; of a metric the bits of its value; an unsigned 64-bit number."""
    dtype: str
    shape: tuple[int, ...] = ()
    place: Place | None = None
    version: int = -1
    """Version counter of the tensor, or -1."""
    writer: int = -1
    """`seq` of the last recorded write to the storage, or -1."""
    flags: int = 0


class Flag(enum.IntFlag):
    """What a row says about itself beside its digest; never compared between runs."""

    CARRIED = 1
    """Not hashed again: the same bytes, at the same address in the same version, were hashed
    before, perhaps in another shape."""
    SKIPPED = 2
    """Not hashed: it has no bits to read."""
    UNINITIALISED = 4
    """An input on storage that no recorded op wrote."""
    PARTLY = 8
    """An input on storage of which recorded ops wrote a part."""
    GAP = 16
    """Recording failed or was reduced here."""
    COMPILED = 32
    """The boundary of a compiled region."""
    SCALAR = 64
    """A Python number read from a tensor; the digest is its bits."""
    RAISED = 128
    """The op raised an exception."""


class Outcome(enum.IntEnum):
    """What a comparison found; the value is the exit status everywhere."""

    SAME = 0
    DIFFERENT = 1
    UNVERIFIED = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a comparison and the sentences that say why."""

    outcome: Outcome
    title: str
    reasons: tuple[str, ...] = ()
