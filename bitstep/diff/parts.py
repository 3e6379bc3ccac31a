"""Which part of a quantized tensor differs, in words.

1. The rows of one tensor at one place are put together by part, on both sides.
2. Parts of meta are words "key=value": those that differ say which fact is another one.
3. Each direction says what of payload, scales and amax differs; where only one of the two copies
   does, they cannot both belong to the tensor.

>>> _direction({"payload": SAME, "scale": OTHER}, "")
'same payload, scales differ'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from bitstep.diff.case import LETTER, Case
from bitstep.diff.rows import Rows
from bitstep.records import Flag

SAME, OTHER, GONE = "same", "other", "gone"
"""Of a part: its bits are the same in both runs, or not, or one run or both have none."""

_COLUMN: Final = ".column"
_MISSING: Final = ("absent", "invalid", "unknown")
_NAMES: Final = {"payload": "payload", "scale": "scales", "amax": "amax"}


def words(case: Case) -> str:
    """What of the quantized tensor of a case differs; nothing for any other."""
    if case.at is None or case.text("part") == "bits":
        return ""
    sides = [_parts(case, side) for side in (0, 1)]
    bits, metas = _states(case, sides), _metas(case, sides)
    copies = _copies(bits)
    found = [copies] if copies else []
    for suffix, where in (("", "" if not copies else "rows: "), (_COLUMN, "columns: ")):
        if said := _direction(bits, suffix):
            found.append(where + said)
    return "; ".join([*found, *_facts(metas, bits)])


def _parts(case: Case, side: int) -> dict[str, int]:
    """The rows of the tensor of the explained row, by part."""
    rows, row = case.sides[side], case.row[side]
    same = [at for at in case.call(side).tolist() if rows.slot[at] == rows.slot[row]]
    return {rows.text("part", at): at for at in same}


def _states(case: Case, sides: list[dict[str, int]]) -> dict[str, str]:
    """Of each part that holds bits, whether they are the same."""
    found = {}
    for name in dict.fromkeys((*sides[0], *sides[1])):
        if not name.startswith("meta"):
            rows = [(of, at[name]) for of, at in zip(case.sides, sides, strict=True) if name in at]
            here = [pair for pair in rows if not pair[0].flags[pair[1]] & Flag.SKIPPED]
            found[name] = GONE if len(here) < 2 else SAME if _equal(*here) else OTHER
    return found


def _equal(a: tuple[Rows, int], b: tuple[Rows, int]) -> bool:
    return all(getattr(a[0], name)[a[1]] == getattr(b[0], name)[b[1]]
               for name in ("digest", "dtype", "form"))  # fmt: skip


def _copies(bits: Mapping[str, str]) -> str:
    """Whether one of two copies is the same in both runs, and the other is not. What both share, as
    the one scale of a per-tensor format, belongs to neither."""
    columns = {state for name, state in bits.items() if name.endswith(_COLUMN)} - {GONE}
    rows = {state for name, state in bits.items() if name + _COLUMN in bits} - {GONE}
    if (rows == {SAME} and OTHER in columns) or (columns == {SAME} and OTHER in rows):
        return "row and column copies disagree"
    return ""


def _direction(bits: Mapping[str, str], suffix: str) -> str:
    """What differs of the row copy, or of the column copy."""
    mine = {name.removesuffix(suffix): state for name, state in bits.items()
            if name.endswith(_COLUMN) == bool(suffix)}  # fmt: skip
    others = [_NAMES.get(name, name) for name, state in mine.items() if state == OTHER]
    same = [_NAMES.get(name, name) for name, state in mine.items() if state == SAME]
    if not others:
        return ""
    if others == ["scales"] and "payload" in same:
        return "same payload, scales differ" + ("" if "amax" not in same else ", amax is the same")
    differ = f"{_listed(others)} {'differs' if others in (['payload'], ['amax']) else 'differ'}"
    is_are = "are" if len(same) > 1 or same == ["scales"] else "is"
    return differ + (f", {_listed(same)} {is_are} the same" if same else "")


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _metas(case: Case, sides: list[dict[str, int]]) -> dict[str, tuple[str | None, str | None]]:
    """The facts that differ: key -> value in A and in B. A meta that one run lacks says nothing."""
    found: dict[str, tuple[str | None, str | None]] = {}
    for name in sides[0].keys() & sides[1].keys():
        rows = [(of, at[name]) for of, at in zip(case.sides, sides, strict=True)]
        if name.startswith("meta") and not any(of.flags[row] & Flag.SKIPPED for of, row in rows):
            a, b = (
                dict(one.split("=", 1) for one in of.text("dtype", row).split() if "=" in one)
                for of, row in rows
            )
            found |= {key: (a.get(key), b.get(key)) for key in a | b if a.get(key) != b.get(key)}
    return found


def _facts(
    metas: Mapping[str, tuple[str | None, str | None]], bits: Mapping[str, str]
) -> Iterator[str]:
    """The facts that differ, as words: what one run lacks, the layout, and all others."""
    for reason in _MISSING:
        if reason in metas:
            yield from _missing(reason, *metas[reason])
    changes = {
        key: f"{key} is {a or 'not said'} in A, {b or 'not said'} in B"
        for key, (a, b) in metas.items()
        if key not in _MISSING
    }
    if layout := changes.pop("swizzled", ""):
        scales = {state for name, state in bits.items() if name.startswith("scale")}
        same = " of the same scales" if SAME in scales and OTHER not in scales else ""
        yield f"another layout{same}: {layout}"
    if changes:
        yield f"another format: {'; '.join(changes.values())}"


def _missing(reason: str, a: str | None, b: str | None) -> list[str]:
    """Parts that one run lacks for this reason."""
    lacks = [names.split(",") if names else [] for names in (a, b)]
    more = [[name for name in lacks[side] if name not in lacks[1 - side]] for side in (0, 1)]
    return [f"{', '.join(more[side])} {reason} in {LETTER[side]}" for side in (0, 1) if more[side]]
