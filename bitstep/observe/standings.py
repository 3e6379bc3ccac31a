"""How the rules of the contract stand, as plain data for a file or a pipe.

>>> from bitstep.contract.enforce import status
>>> as_data(status())[0]["name"]
'PYTHONHASHSEED'
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bitstep.contract.standing import Standing


def as_data(standings: Iterable[Standing]) -> list[dict[str, Any]]:
    """One table for each rule."""
    return [
        {
            "name": one.rule.name,
            "kind": one.rule.kind,
            "library": one.rule.library,
            "value": one.value,
            "verdict": one.verdict,
            "said": one.said,
            "fill": "the number of threads" if one.rule.takes_threads else one.rule.fill,
            "why": one.rule.why,
            "evidence": one.rule.evidence,
            "mark": one.rule.mark,
        }
        for one in standings
    ]
