"""Faults that are switched on by name, so that a guarantee must fail and be seen to fail.

A proof that could not have said no proves nothing. Each fault removes one mechanism:

- left-fold: the microbatches of a process are added one after another in place of the tree;
- stock-reduction: FSDP2's own reduce-scatter, then the left fold;
- wall-clock-seed: the seed is taken from the clock;
- fused-adamw: the fused optimizer, whose bits depend on where shards are cut;
- restore-without=STREAM: a restored attempt leaves one stream of the training state out.

>>> parse_fault("restore-without=moments")
Fault(kind='restore-without', stream='moments')
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bitstep.errors import UsageError

FaultKind = Literal[
    "left-fold", "stock-reduction", "wall-clock-seed", "fused-adamw", "restore-without"
]

NAMES: tuple[str, ...] = tuple(
    "restore-without=STREAM" if kind == "restore-without" else kind for kind in get_args(FaultKind)
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; `stream` is set for restore-without only."""

    kind: FaultKind
    stream: str | None = None

    def __str__(self) -> str:
        return self.kind if self.stream is None else f"{self.kind}={self.stream}"


def parse_fault(text: str) -> Fault:
    """The fault that the text names. UsageError for any other text, with the names.

    Whether STREAM exists is for the restore to say, which knows the streams.
    """
    kind, equals, stream = text.partition("=")
    takes_stream = kind == "restore-without"
    if kind in get_args(FaultKind) and bool(equals) == takes_stream == bool(stream):
        return Fault(kind, stream or None)  # type: ignore[arg-type]  # one of get_args
    raise UsageError(f"no fault is named {text!r}: use one of {', '.join(NAMES)}")
