"""Faults that can be switched on, so that what must be found is found. Knows nothing of a recorder.

1. `named` takes one guarantee of our engine away: `--fault left-fold`.
2. `flip` describes one wrong bit in any program; `arm` has it happen, and leaves a receipt.
3. `bootstrap/` arms a program whose source is not touched, through its environment.

>>> parse_fault("restore-without=moments")
Fault(kind='restore-without', argument='moments')
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitstep.faults.environment import fault_environment
from bitstep.faults.flip import Flip, parse_flips
from bitstep.faults.named import ARGUMENTS, NAMES, PAUSE, Fault, FaultKind, parse_fault

if TYPE_CHECKING:
    from bitstep.faults.armed import Armed

__all__ = [
    "ARGUMENTS",
    "NAMES",
    "PAUSE",
    "Fault",
    "FaultKind",
    "Flip",
    "arm",
    "fault_environment",
    "parse_fault",
    "parse_flips",
]


def arm() -> Armed | None:
    """Arm this process with what its environment asks for; None where it asks for nothing.

    The bootstrap calls it once torch is imported; a second call gives back the first.
    """
    from bitstep.faults.armed import arm as armed

    return armed()
