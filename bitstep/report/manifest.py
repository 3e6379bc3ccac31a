"""Manifests as a person reads them: all keys of one, and what differs between two.

1. Differences stand under whether they can change bits, with the reason; keys with one reason share
   a line, so that a hundred other versions are one.
2. What cannot change bits is counted and named; `verbose` gives every key a line of its own.
3. `differences_json` is all of it as data, in the same order; docs/manifest.md is its contract.

    1 key differs, 1 of which must match
    can change bits (1)
      settings.threads.torch: 1 in A, 2 in B (must match: the order of summation depends on it)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from bitstep.contract.classes import (
    ALWAYS,
    CAN,
    CANNOT,
    CHANGES,
    MUST,
    RANKED,
    THROUGH,
    UNKNOWN,
    Bits,
)
from bitstep.contract.manifest import ABSENT, Difference
from bitstep.contract.versions import NOT_COLLECTED
from bitstep.errors import printable

WIDTH: Final = 100
LINES: Final = 24
_VALUE: Final = 34
"""Characters of a value on a shared screen."""
_TOGETHER: Final = 3
"""Keys of one reason that still have a line each."""
_COLLAPSED: Final = ("hardware.cpu.flags.", "software.distributions.", "program.files.")
_SHORT: Final = 16
_MOST: Final[dict[Bits, int]] = {CHANGES: 4, CAN: 6, THROUGH: 3, UNKNOWN: 2, CANNOT: 3}
"""Lines of each rank on the first screen: with a line above each and one above all, 24."""


def differences_text(differences: Sequence[Difference], verbose: bool = False) -> str:
    """What differs, most important first; at most 24 lines unless `verbose`."""
    shown = [one for one in differences if verbose or one.key not in ALWAYS]
    if not shown:
        return "no key differs"
    must = sum(one.class_ == MUST for one in shown)
    keys = "1 key differs" if len(shown) == 1 else f"{len(shown)} keys differ"
    lines = [f"{keys}, {must or 'none'} of which must match"]
    for bits in RANKED:
        found = [one for one in shown if one.bits == bits]
        if found:
            lines.append(f"{bits} ({len(found)})")
            lines += _rows(found, _MOST[bits], verbose)
    return "\n".join(lines)


def _rows(found: Sequence[Difference], most: int, verbose: bool) -> list[str]:
    """The lines below one rank: at most that many, without `verbose`."""
    if verbose:
        return [f"  {_named(one, 10**6)} ({one.class_}: {one.reason})" for one in found]
    blocks = list(_grouped(found, short=found[0].bits not in (CHANGES, CAN)))
    lines: list[str] = []
    for at, block in enumerate(blocks):
        left = len(blocks) - at
        if len(lines) + len(block) + (left > 1) > most:
            return [*lines, f"  and {left} more lines with -v, or with --json"]
        lines += block
    return lines


def _grouped(found: Sequence[Difference], short: bool) -> Iterator[list[str]]:
    """A line or two for a key, or for many keys of one family and reason."""
    tables: dict[tuple[str, str, str], list[Difference]] = {}
    for one in found:
        tables.setdefault((one.class_, one.reason, _family(one.key)), []).append(one)
    for (class_, reason, family), members in tables.items():
        why = f"({class_}: {reason})"
        if len(members) > _TOGETHER:
            names = ", ".join(one.key.removeprefix(f"{family}.") for one in members)
            lines = [f"{len(members)} keys of {family} {why}", f"  {names}"]
            yield [f"  {_cut(line, WIDTH - 2)}" for line in lines[: 1 if short else 2]]
        else:
            yield from (_block(one, why, short) for one in members)


def _block(one: Difference, why: str, short: bool) -> list[str]:
    """One line where all fits, else two, or one without the values."""
    what = _named(one, _VALUE)
    if len(what) + len(why) + 3 <= WIDTH:
        return [f"  {what} {why}"]
    if short:
        return [f"  {_cut(f'{one.key} {why}', WIDTH - 2)}"]
    return [f"  {_cut(what, WIDTH - 2)}", f"    {_cut(why, WIDTH - 4)}"]


def _family(key: str) -> str:
    parts = key.split(".")
    return ".".join(parts[: 2 if len(parts) > 2 else 1])


def _named(one: Difference, most: int) -> str:
    return printable(f"{one.key}: {_value(one.a, most)} in A, {_value(one.b, most)} in B")


def _value(value: Any, most: int) -> str:
    if value in (ABSENT, NOT_COLLECTED):
        return str(value)
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        value = ", ".join(value)
    text = value if isinstance(value, str) and value else json.dumps(value)
    return _cut(text, most)


def _cut(text: str, width: int) -> str:
    text = printable(text)
    return text if len(text) <= width else text[: width - 3] + "..."


def differences_json(differences: Iterable[Difference]) -> list[dict[str, Any]]:
    """Every key that differs; docs/manifest.md says what each name holds."""
    return [
        {"key": d.key, "class": d.class_, "bits": d.bits, "a": d.a, "b": d.b, "reason": d.reason}
        for d in differences
    ]


def head(differences: Sequence[Difference], most: int = 3) -> Iterator[str]:
    """The lines that stand above a comparison of two runs: what can change bits, then all else in
    one line."""
    shown = [one for one in differences if one.key not in ALWAYS]
    can = [one for one in shown if one.bits in (CHANGES, CAN)]
    yield from (_above(one) for one in can[:most])
    if len(can) > most:
        yield f"and {len(can) - most} more settings that can change bits (bitstep manifest diff)"
    others = [one for one in shown if one not in can]
    if others:
        more = f"; {len(others) - 1} more of the kind" if len(others) > 1 else ""
        yield _above(others[0], more)


def _above(one: Difference, more: str = "") -> str:
    """One line, in which the values give way to the reason, down to _SHORT characters each."""
    around = len(f"{one.bits}: {one.key}:  in A,  in B ({one.reason}){more}")
    room = min(max((WIDTH - around) // 2, _SHORT), _VALUE)
    return _cut(f"{one.bits}: {_named(one, room)} ({one.reason}){more}", WIDTH)


def manifest_lines(keys: Mapping[str, Any], verbose: bool = False) -> Iterator[str]:
    """Every key of a manifest; what is many of a kind in one line, unless `verbose`."""

    def kind(key: str) -> str:
        many = next((prefix for prefix in _COLLAPSED if key.startswith(prefix)), "")
        return key if verbose or not many else many

    for name, found in groupby(sorted(keys), kind):
        members = list(found)
        if name in _COLLAPSED:
            yield f"{name}* = {', '.join(_short(key, name, keys[key]) for key in members)}"
        else:
            yield f"{name} = {json.dumps(keys[name])}"


def _short(key: str, prefix: str, value: Any) -> str:
    name = key.removeprefix(prefix)
    return name if value is True or prefix == "program.files." else f"{name} {value}"
