"""Faults of our engine, switched on by name, so that a guarantee must fail and be seen to fail.

A proof that could not have said no proves nothing. Each fault removes one mechanism:

- left-fold: the microbatches of a process are added one after another in place of the tree;
- stock-reduction: FSDP2's own reduce-scatter, then the left fold;
- wall-clock-seed: the seed is taken from the clock;
- fused-adamw: the fused optimizer, whose bits depend on where shards are cut;
- process-wide-rounding: stochastic rounding draws from the generator of the process;
- restore-without=STREAM: a restored attempt leaves one stream of the training state out;
- pause-at=POSITION: a save waits there for PAUSE seconds, wherever it comes to that position, so
  that a kill finds it there. It changes no bit: a save that only time can break is broken.

>>> parse_fault("restore-without=moments")
Fault(kind='restore-without', argument='moments')
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bitstep.errors import UsageError

FaultKind = Literal[
    "left-fold",
    "stock-reduction",
    "wall-clock-seed",
    "fused-adamw",
    "process-wide-rounding",
    "restore-without",
    "pause-at",
]

ARGUMENTS: dict[str, str] = {"restore-without": "STREAM", "pause-at": "POSITION"}
"""What the text after "=" names, for the kinds that take one."""

NAMES: tuple[str, ...] = tuple(
    f"{kind}={ARGUMENTS[kind]}" if kind in ARGUMENTS else kind for kind in get_args(FaultKind)
)

PAUSE = 2.0
"""Seconds that pause-at waits."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    kind: FaultKind
    argument: str | None = None
    """A stream or a position, see ARGUMENTS."""

    def __str__(self) -> str:
        return self.kind if self.argument is None else f"{self.kind}={self.argument}"

    def of(self, kind: FaultKind) -> str | None:
        """The argument if this is a fault of that kind, else None."""
        return self.argument if self.kind == kind else None


def parse_fault(text: str) -> Fault:
    """The fault that the text names. UsageError for any other text, with the names.

    Whether a STREAM exists is for the restore to say, which knows the streams.
    """
    kind, equals, argument = text.partition("=")
    if kind in get_args(FaultKind) and bool(equals) == (kind in ARGUMENTS) == bool(argument):
        return Fault(kind, argument or None)  # type: ignore[arg-type]  # one of get_args
    raise UsageError(f"no fault is named {text!r}: use one of {', '.join(NAMES)}")
