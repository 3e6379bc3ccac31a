"""How a program is armed from outside: the variables, and what puts them together. No torch.

1. BITSTEP_FAULT holds flips, see `flip`, or "none".
2. BITSTEP_FAULT_DIR is where receipts, the digests of the state and the calls go.
3. BITSTEP_FAULT_CALLS=1 has every call listed.
4. PYTHONPATH begins with the folder of our `sitecustomize`, which every Python process reads.

>>> environment = fault_environment(Path("out"), parse_flips("none"), before={"PYTHONPATH": "src"})
>>> environment["BITSTEP_FAULT"], environment["PYTHONPATH"].endswith(":src")
('[]', True)
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitstep.faults.flip import Flip, parse_flips

FLIPS, FOLDER, CALLS = "BITSTEP_FAULT", "BITSTEP_FAULT_DIR", "BITSTEP_FAULT_CALLS"
BOOTSTRAP = Path(__file__).parent / "bootstrap"


@dataclass(frozen=True, slots=True)
class Order:
    """What the environment of a process asks for."""

    flips: tuple[Flip, ...]
    folder: Path | None
    """None: leave nothing on the disk."""
    lists_calls: bool = False


def fault_environment(
    folder: Path,
    flips: Sequence[Flip] = (),
    *,
    lists_calls: bool = False,
    before: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables that arm a program, to be added to `before`, or to this environment."""
    python_path = (os.environ if before is None else before).get("PYTHONPATH")
    return {
        FLIPS: json.dumps([flip.to_json() for flip in flips]),
        FOLDER: str(folder),
        CALLS: "1" if lists_calls else "",
        "PYTHONPATH": os.pathsep.join([str(BOOTSTRAP), *([python_path] if python_path else [])]),
    }


def read_order(environment: Mapping[str, str]) -> Order | None:
    """What the variables ask for; None where they ask for nothing. Raises UsageError."""
    text = environment.get(FLIPS, "")
    if not text:
        return None
    folder = environment.get(FOLDER)
    return Order(parse_flips(text), Path(folder) if folder else None, bool(environment.get(CALLS)))
