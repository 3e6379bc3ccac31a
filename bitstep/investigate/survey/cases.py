"""All cases of the survey.

>>> len(all_cases()) > 400
True
"""

from __future__ import annotations

import hashlib
from fnmatch import fnmatchcase

from bitstep.errors import UsageError
from bitstep.investigate.survey import (
    elementwise,
    indexing,
    layers,
    matmul,
    reductions,
    training,
)
from bitstep.investigate.survey.case import Case

_GROUPS = (elementwise, reductions, matmul, indexing, layers, training)


def all_cases() -> dict[str, Case]:
    """By name."""
    found: dict[str, Case] = {}
    for group in _GROUPS:
        for case in group.cases():
            assert case.name not in found, case.name
            found[case.name] = case
    return found


def chosen(pattern: str) -> list[str]:
    """Names of the cases of which the name or the operation fits the pattern, and the controls.

    Raises UsageError if there is none.
    """
    cases = all_cases()
    fitting = [
        name
        for name, case in cases.items()
        if fnmatchcase(name, pattern) or fnmatchcase(case.op.removeprefix("aten."), pattern)
    ]
    if not fitting:
        raise UsageError(f"no case of the survey fits {pattern!r}: try '*' or 'index_put*'")
    controls = [training.VARIES.name, training.STABLE.name]
    return [*controls, *(name for name in fitting if name not in controls)]


def identity() -> str:
    """A digest of what the inputs are: two surveys with the same one computed the same things."""
    total = hashlib.blake2b(digest_size=8)
    for name, case in sorted(all_cases().items()):
        total.update(f"{name}\n{case.op}\n{dict(case.wanted)}\n".encode())
    return total.hexdigest()
