"""The screen of the inertness check.

inert: 8 states on 2 ranks are equal in 4 arms
arm               seconds  rows   hashed  written
bare              4.1
recorded          5.0      10642  1.3 MB  801 kB
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def inert_text(found: Mapping[str, Any]) -> str:
    """The screen of what `inert_json` gives."""
    lines = [f"{found['title']}: {'; '.join(found['reasons'])}", ""]
    rows = [["arm", "seconds", "rows", "hashed", "written"]]
    for arm in found["arms"]:
        cells = [str(arm["rows"]), size(arm["hashed"]), size(arm["written"])]
        recorded = arm["rows"] > 0
        rows.append([arm["name"], f"{arm['seconds']:.1f}", *(cells if recorded else ["", "", ""])])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    lines += [
        "",
        "Of an accelerator recording adds one transfer a step; without one there is none.",
    ]
    return "\n".join(lines)


def size(count: int) -> str:
    """Bytes for a person.

    >>> size(1_300_000)
    '1.3 MB'
    """
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("units end with GB")
