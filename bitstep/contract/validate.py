"""Whether a document is a manifest: it is data, and nothing in it is trusted.

>>> check({"format": 2}, Path("manifest.json"))
Traceback (most recent call last):
bitstep.errors.ContractError: manifest.json: it has format 2; this version reads 1; ...
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from bitstep.errors import ContractError

FORMAT = 1
MAX_DEPTH = 8
"""How deep a value may be nested."""

_KEY = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_ROOT = re.compile(r"[0-9a-f]{16}")


def parse(content: bytes, path: Path) -> Any:
    """The JSON of a manifest. Raises ContractError for anything else, however deep or long."""
    try:
        return json.loads(content.decode(), object_pairs_hook=_unique)
    except RecursionError:
        raise bad(path, "it is nested too deep") from None
    except ValueError as problem:  # not UTF-8, not JSON, a key twice, an endless number
        raise bad(path, f"it is not JSON: {problem}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return table


def check(document: Any, path: Path) -> None:
    """Raise ContractError unless every name, type and value of the document is as it must be."""
    if not isinstance(document, dict) or type(document.get("format")) is not int:
        raise bad(path, "it has no format number")
    if document["format"] != FORMAT:
        raise bad(path, f"it has format {document['format']}; this version reads {FORMAT}")
    attempts = document.get("attempts")
    if set(document) != {"format", "attempts"} or not isinstance(attempts, list) or not attempts:
        raise bad(path, "it must hold a format and a list of attempts, and nothing else")
    for number, entry in enumerate(attempts):
        problem = _problem(entry, number)
        if problem:
            raise bad(path, f"attempt {number}: {problem}")


def _problem(entry: Any, number: int) -> str:
    if not isinstance(entry, dict) or set(entry) != {"attempt", "parent", "keys", "declared"}:
        return "it must hold attempt, parent, keys and declared, and nothing else"
    if not _whole(entry["attempt"]) or entry["attempt"] != number:
        return "its number is another"
    if entry["parent"] is not None and not _is_parent(entry["parent"]):
        return "its parent is not an attempt, a step and a root of 16 hex digits"
    keys, declared = entry["keys"], entry["declared"]
    if not isinstance(keys, dict) or not all(_is_key(key) for key in keys):
        return "its keys are not a table of dotted names"
    if not isinstance(declared, list) or not all(_is_key(key) for key in declared):
        return "its declared keys are not a list of dotted names"
    bad = [key for key, value in keys.items() if not _is_value(value, MAX_DEPTH)]
    return f"{bad[0]} is not a finite JSON value of at most {MAX_DEPTH} levels" if bad else ""


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_parent(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"attempt", "step", "root"}
        and _whole(value["attempt"])
        and _whole(value["step"])
        and isinstance(value["root"], str)
        and _ROOT.fullmatch(value["root"]) is not None
    )


def _is_key(value: Any) -> bool:
    return isinstance(value, str) and _KEY.fullmatch(value) is not None


def _is_value(value: Any, depth: int) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, (list, dict)):
        inner = value.values() if isinstance(value, dict) else value
        names = value if isinstance(value, dict) else ()
        return depth > 0 and all(isinstance(n, str) for n in names) and _all(inner, depth - 1)
    return value is None or isinstance(value, (str, int))


def _all(values: Any, depth: int) -> bool:
    return all(_is_value(value, depth) for value in values)


def bad(path: Path, what: str) -> ContractError:
    """The error for a manifest of which `what` is wrong."""
    return ContractError(f"{path}: {what}; it was damaged, or not written by bitstep")
