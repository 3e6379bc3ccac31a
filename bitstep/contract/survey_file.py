"""Read the report of a survey, which a stranger may have sent: nothing in it is believed.

1. `read` takes a file, of limited size; `shipped` the report that comes with bitstep, on which the
   rows of the catalog rest.
2. Every name, type, length and letter is as `survey` writes it, or the file is refused.

>>> shipped().device
'cpu'
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from bitstep.contract.survey import FORMAT, OFFSETS, Counts, Measured, Report
from bitstep.errors import ContractError, printable

MOST_BYTES: Final = 4 << 20
MOST_CASES: Final = 4000
SHIPPED: Final = "cpu-avx512.json"


@cache
def shipped() -> Report:
    """The report that comes with bitstep."""
    path = files("bitstep.contract") / "surveys" / SHIPPED
    return parse(path.read_bytes(), Path(SHIPPED))


def read(path: Path) -> Report:
    """Read a report. Raises ContractError for a file that is none."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ContractError(f"{path}: it cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise _bad(path, f"it has more than {MOST_BYTES} bytes")
    return parse(content, path)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # for somebody who writes to a pipe


def parse(content: bytes, path: Path) -> Report:
    """The report in a file's content. Raises ContractError, which names the path."""
    try:
        document = json.loads(content.decode(), object_pairs_hook=_unique)
    except RecursionError:
        raise _bad(path, "it is nested too deep") from None
    except ValueError:  # not UTF-8, not JSON, a key twice, an endless number
        raise _bad(path, "it is not JSON") from None
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise _bad(path, f"it does not have format {FORMAT}")
    try:
        return _report(document)
    except _Refused as refused:
        raise _bad(path, str(refused)) from None


class _Refused(Exception):
    pass


def _report(document: dict[str, Any]) -> Report:
    _demand(set(document) == set(Report.__slots__), "its keys are others")
    cases = document["cases"]
    _demand(isinstance(cases, dict) and 0 < len(cases) <= MOST_CASES, "it has no or too many cases")
    for name in ("machine", "versions"):
        _demand(_is_texts(document[name]), f"its {name} are not texts by name")
    _demand(document["device"] in ("cpu", "cuda"), "its device is neither cpu nor cuda")
    _demand(_matches(r"[0-9a-f]{16}", document["inputs"]), "its inputs are no digest")
    for name, is_one in (("threads", _is_count), ("rows", _is_count), ("environments", _is_text)):
        value = document[name]
        fits = isinstance(value, list) and len(value) <= 26 and all(map(is_one, value))
        _demand(fits, f"its {name} are no short list")
        document[name] = tuple(value)
    _demand(all(map(_is_text, cases)), "a case has no proper name")
    measured = {name: _measured(name, value, document) for name, value in cases.items()}
    return Report(**{**document, "cases": measured})


def _measured(name: str, value: Any, document: Mapping[str, Any]) -> Measured:
    where = f"case {printable(name)}"
    known = isinstance(value, dict) and set(value) <= set(Measured.__slots__)
    _demand(known and "op" in value, f"{where} has no op, or unknown keys")
    for key in ("op", "failed", "raises"):
        _demand(_is_text(value.get(key, "")), f"{where}: its {key} is no text")
    _demand(_matches(r"[0-9a-f]{16}|", value.get("bits", "")), f"{where}: its bits are no digest")
    lengths = {
        "threads": len(document["threads"]),
        "alignment": OFFSETS,
        "rows": len(document["rows"]),
        "environments": 1 + len(document["environments"]),
    }
    for key, length in lengths.items():
        fits = _matches(rf"([a-z=!]|[a-z=!]{{{length}}})?", value.get(key, ""))
        _demand(fits, f"{where}: its {key} are not {length} letters")
    _demand(_is_names(value.get("ops", [])), f"{where}: its ops are no list of names")
    parts = value.get("parts", {})
    _demand(isinstance(parts, dict) and len(parts) <= 8, f"{where}: its parts are no table")
    _demand(all(map(_is_names, parts.values())), f"{where}: its parts are no names")
    off = value.get("off", "")
    fractions = {"off": off, "on": value.get("on", "" if "raises" in value else off)}
    for key, said in fractions.items():
        _demand(_is_fractions(said, lengths["threads"]), f"{where}: its {key} is not n/m each")
    counts = {key: _counts(said) for key, said in fractions.items()}
    kept = {"ops": tuple(value.get("ops", ())), "parts": {k: tuple(v) for k, v in parts.items()}}
    letters = {key: value[key] * lengths[key] for key in lengths if len(value.get(key, "")) == 1}
    return Measured(**{**value, **counts, **kept, **letters})


def _is_fractions(value: Any, length: int) -> bool:
    return _matches(r"([1-9]\d{0,3}/[1-9]\d{0,3}( (?!$)|$))*", value) and (
        value == "" or value.count("/") == length
    )


def _counts(fractions: str) -> Counts:
    pairs = (fraction.split("/") for fraction in fractions.split())
    return tuple((int(distinct), int(of)) for distinct, of in pairs)


def _demand(fits: bool, what: str) -> None:
    if not fits:
        raise _Refused(what)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return table


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 10_000


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 400 and value == printable(value)


def _is_texts(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= 64
        and all(map(_is_text, [*value, *value.values()]))
    )


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 64 and all(map(_is_text, value))


def _matches(pattern: str, value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _bad(path: Path, what: str) -> ContractError:
    return ContractError(f"{path}: {what}; it was damaged, or not written by bitstep survey")
