"""One wrong bit: which, where and when. Imports no torch.

A call is one operation that the program dispatches. Calls are counted anew in each step, which
begins with the first training forward after an update.

- output: a bit of what a call has written, below whoever watches; of a collective once it is done;
- input: a bit of what a call is about to read, below whoever watches;
- stray: a bit of a tensor between two calls, through its address: no operation, no version.

>>> parse_flips("output step=3 rank=1 op=aten.mm occurrence=2 element=5 bit=30")[0].op
'aten.mm'
>>> parse_flips("stray step=2 position=before-optimizer tensor=grad:0.weight bit=7")[0].position
'before-optimizer'
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from bitstep.errors import UsageError

Kind = Literal["output", "input", "stray"]
Position = Literal[
    "before-forward", "after-forward", "after-backward", "before-optimizer", "after-optimizer"
]

NOTHING = "none"
"""In place of flips: watch the state, change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """One bit to flip, once."""

    kind: Kind
    step: int
    """From 1."""
    rank: int = 0
    phase: str = ""
    """Count only the calls of this phase; empty: of all."""
    op: str = ""
    """Count only the calls of this operation, as "aten.mm"; empty: of all."""
    occurrence: int = 0
    """Which of the counted calls of the step; a stray write comes right after it."""
    position: str = ""
    """Of a stray write that is not placed by a call: one of `Position`, its first in the step."""
    tensor: str = ""
    """Of a stray write: "param:NAME", "grad:NAME", "exp_avg:NAME" (any key of an optimizer's
    state), or "output:CALL:INDEX", CALL counted among all of the step."""
    output: int = 0
    """Which of the tensors that the call writes or, for an input, takes."""
    element: int = 0
    bit: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UsageError(f"no kind of flip is named {self.kind!r}: {', '.join(get_args(Kind))}")
        if self.position not in ("", *get_args(Position)):
            named = ", ".join(get_args(Position))
            raise UsageError(f"no position is named {self.position!r}: use one of {named}")
        if (self.kind == "stray") != bool(self.tensor):
            raise UsageError("a stray write names its tensor; an output and an input do not")
        if self.position and self.kind != "stray":
            raise UsageError("a position is for a stray write: an output is placed by its call")
        for name in ("step", "rank", "occurrence", "output", "element", "bit"):
            if getattr(self, name) < (1 if name == "step" else 0):
                raise UsageError(f"{name} is {getattr(self, name)} in a flip")

    def to_json(self) -> dict[str, Any]:
        """The fields that are not at their default."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name in ("kind", "step") or value not in ("", 0)
        }


def parse_flips(text: str) -> tuple[Flip, ...]:
    """The flips of a text: JSON (an object or a list of them), or words. Raises UsageError.

    "none" gives none: the program is watched and left alone.
    """
    if text.strip() == NOTHING:
        return ()
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except ValueError as error:
            raise UsageError(f"a flip is not JSON: {error}") from None
        items = value if isinstance(value, list) else [value]
        return tuple(_flip(item) for item in items)
    kind, *words = text.split()
    pairs = [word.partition("=") for word in words]
    return (_flip({"kind": kind, **{key: value for key, _, value in pairs}}),)


def _flip(item: Any) -> Flip:
    types = {field.name: field.type for field in fields(Flip)}
    if not isinstance(item, Mapping) or not item.keys() <= types.keys():
        raise UsageError(f"a flip has the keys {', '.join(types)}, not {item!r}")
    try:
        # Annotations are text here: "int" or not.
        values = {k: int(v) if types[k] == "int" else str(v) for k, v in item.items()}
        return Flip(**values)  # type: ignore[arg-type]  # checked by Flip itself
    except (TypeError, ValueError) as error:
        raise UsageError(f"not a flip: {error}") from None
