"""What a program is to be examined for, as its environment says it. No torch.

1. BITSTEP_EXAMINE holds an order as JSON.
2. PYTHONPATH begins with the folder of our `sitecustomize`, which every Python process reads.

>>> order = Order(folder=Path("/tmp/out"), workers="other")
>>> read_order(order.to_environment({})) == order
True
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal

from bitstep.errors import UsageError

Workers = Literal["as given", "none", "other"]
VARIABLE: Final = "BITSTEP_EXAMINE"
BOOTSTRAP: Final = Path(__file__).parent / "bootstrap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is done to one run of the program, and what is left of it."""

    folder: Path
    """Where each process leaves its file."""
    steps: int = 2
    """Steps after which the process ends itself."""
    entropy: int = 0
    """Stands in for what the machine would seed Python, NumPy and unseeded generators with; not 0:
    it also takes the place of the number that torch begins with."""
    workers: Workers = "as given"
    """Of every DataLoader. "other": two where it has none, none where it has some."""
    mute: bool = False
    """Whether the program's saves write nothing."""
    save_wait: float = 0.0
    """Seconds that the program may go on after the last step until it saves; 0: it may not."""
    perturb: str = ""
    """The stream that is changed at the end of step 1."""
    streams: tuple[str, ...] = ()
    """Not empty: at the end of step 1 a child is forked for each, which changes that stream."""
    updates: int = 1
    """Optimizer updates in step 1, after the last of which streams are changed."""

    def to_environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with this order, and our bootstrap in front."""
        others = base.get("PYTHONPATH", "")
        value = {**asdict(self), "folder": str(self.folder)}
        path = os.pathsep.join([str(BOOTSTRAP), *([others] if others else [])])
        return {**base, VARIABLE: json.dumps(value), "PYTHONPATH": path}


def read_order(environment: Mapping[str, str]) -> Order | None:
    """The order of an environment, or None. Raises UsageError for what is none."""
    text = environment.get(VARIABLE, "")
    if not text:
        return None
    try:
        value = json.loads(text)
        order = Order(**{**value, "streams": tuple(value["streams"])})
        return replace(order, folder=Path(value["folder"]))
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{VARIABLE}: {error}: it is set by bitstep doctor alone") from None
