"""The manifest of an attempt: what two attempts must have in common, in one flat table.

1. `append_attempt` adds an attempt to RUN/manifest.json, which is replaced whole or not at all.
2. `read_manifest` gives all attempts of a run; the file is data, and nothing in it is trusted.
3. `compare` names every key that differs, with its class, both values, and whether they can change
   bits: what must match first, and then by that.

    {"format": 1, "attempts": [{"attempt": 0, "parent": null, "keys": {...}, "declared": []}]}

>>> compare(Manifest({"settings.dtype": "float32"}), Manifest({"settings.dtype": "float64"}))
(Difference(key='settings.dtype', class_='must match', a='float32', b='float64', ...),)
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from bitstep.contract.classes import (
    DECLARED,
    MAY,
    MUST,
    RANKED,
    UNKNOWN,
    Bits,
    Classed,
    KeyClass,
    classify,
)
from bitstep.contract.validate import FORMAT, bad, check, parse
from bitstep.contract.versions import (
    NOT_COLLECTED,
    comparable,
    not_collected,
    upgraded,
    version_of,
)
from bitstep.errors import ContractError, RunError

NAME = "manifest.json"
MAX_BYTES = 32 << 20
"""A larger manifest is neither read nor written; an attempt takes about 16 KB."""
ABSENT = "(absent)"
"""Stands in a Difference for the value of a key that one side does not have."""

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was collected for one attempt."""

    keys: Mapping[str, Any]
    """Dotted key to JSON value."""
    declared: tuple[str, ...] = ()
    """Keys that differ from those of the parent by intent."""


class Parent(TypedDict):
    """Where a resumed attempt continues from."""

    attempt: int
    step: int
    root: str
    """State root at that step, 16 hex digits."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One entry of the file."""

    attempt: int
    parent: Parent | None
    manifest: Manifest


class Difference(NamedTuple):
    """One key with two values."""

    key: str
    class_: KeyClass
    a: Any
    b: Any
    reason: str
    bits: Bits
    """Whether these two values can change bits."""


def compare(a: Manifest, b: Manifest) -> tuple[Difference, ...]:
    """Every key that differs: those that must match first, then those that can change bits.

    Values are the same if their JSON is: 1, 1.0 and true are three values. A key for which the
    older of two collections did not look is no difference that must match.
    """
    declared = (*a.declared, *b.declared)
    sides = upgraded(a.keys), upgraded(b.keys)
    versions = version_of(a.keys), version_of(b.keys)
    found = [
        _difference(key, sides, versions, declared)
        for key in sides[0].keys() | sides[1].keys()
        if _differ(key, *sides)
    ]
    return tuple(sorted(found, key=_rank))


def _rank(one: Difference) -> tuple[bool, int, bool, str]:
    return one.class_ != MUST, RANKED.index(one.bits), one.class_ != DECLARED, one.key


def _difference(
    key: str,
    sides: tuple[Mapping[str, Any], Mapping[str, Any]],
    versions: tuple[int, int],
    declared: tuple[str, ...],
) -> Difference:
    values = [side.get(key, ABSENT) for side in sides]
    missing = [at for at, side in enumerate(sides) if key not in side]
    if missing and not_collected(key, versions[missing[0]]):
        values[missing[0]] = NOT_COLLECTED
        said = Classed(MAY, "an older bitstep did not collect it", UNKNOWN)
    else:
        said = classify(key, declared, one_sided=bool(missing))
    return Difference(key, said.class_, values[0], values[1], said.reason, said.bits)


def _differ(key: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    if key not in a or key not in b:
        return True
    one, other = comparable(a[key], b[key]), comparable(b[key], a[key])
    return json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True)


def refuse_if_different(a: Manifest, b: Manifest) -> None:
    """Raise ContractError if a key that must match differs. `a` is on record, `b` is now."""
    # What `a` declared was about its own parent.
    wrong = [d for d in compare(Manifest(a.keys), b) if d.class_ == MUST]
    if wrong:
        named = [f"{d.key} was {short(d.a)}, is {short(d.b)} ({d.reason})" for d in wrong]
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ContractError(
            f"not the same contract: {'; '.join(named[:_SHOWN])}{more}: "
            "set it back, or start a new run"
        )


def append_attempt(run: Path, manifest: Manifest, parent: Parent | None) -> int:
    """Add an attempt to RUN/manifest.json, atomically and durably; gives back its number.

    Raises ContractError if the file there is damaged or would grow past MAX_BYTES, and RunError
    if it cannot be written.
    """
    attempts = read_manifest(run) if os.path.lexists(run / NAME) else ()
    new = Attempt(len(attempts), parent, manifest)
    document = {"format": FORMAT, "attempts": [_entry(a) for a in (*attempts, new)]}
    check(document, run / NAME)
    content = json.dumps(document, indent=1, allow_nan=False).encode()
    if len(content) > MAX_BYTES:
        raise ContractError(f"{run / NAME} would pass {MAX_BYTES} bytes: start a new run")
    try:
        _replace(run, content)
    except OSError as problem:
        raise RunError(f"{run / NAME}: cannot write it: {problem.strerror}; correct that") from None
    return new.attempt


def read_manifest(run: Path) -> tuple[Attempt, ...]:
    """All attempts of a run, at least one. Raises ContractError if any byte is out of place."""
    path = run / NAME
    document = parse(_read(path), path)
    check(document, path)
    return tuple(
        Attempt(e["attempt"], e["parent"], Manifest(e["keys"], tuple(e["declared"])))
        for e in document["attempts"]
    )


def short(value: Any) -> str:
    """A value of a Difference as at most 80 characters."""
    # ASCII, so that what a hostile file holds cannot steer a terminal.
    text = value if value in (ABSENT, NOT_COLLECTED) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _entry(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "parent": attempt.parent,
        "keys": dict(attempt.manifest.keys),
        "declared": list(attempt.manifest.declared),
    }


def _replace(run: Path, content: bytes) -> None:
    # A fixed name: what a killed attempt leaves behind is overwritten by the next one.
    temporary = run / f".{NAME}.part"
    try:
        with open(temporary, "wb", opener=_no_links) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, run / NAME)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(run, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=_no_links) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise bad(path, "it is not a regular file")
            if status.st_size > MAX_BYTES:
                raise bad(path, f"it has {status.st_size} bytes, more than {MAX_BYTES}")
            return file.read(MAX_BYTES)
    except OSError as problem:
        raise ContractError(
            f"{path}: {problem.strerror}; name the directory of a run, which holds a {NAME}"
        ) from None


def _no_links(path: str, flags: int) -> int:
    # Neither a link out of the run, nor a pipe that is waited for without end.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
