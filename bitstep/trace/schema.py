"""What a trace file holds: its format version, its columns, and how a metric becomes bits.

1. `FORMAT` and `DEFINITION` stand in every file; a reader refuses any other.
2. `SCHEMA` is the one table of columns: names, types, order.
3. `metric_bits` and `metric_value` turn a metric into its bits and back, exactly.

>>> hex(metric_bits(-0.0, "float32")), metric_value(0x80000000, "float32")
('0x80000000', -0.0)
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from bitstep.errors import TraceError

FORMAT: Final = 2
"""Version of the file format. One number, no minor part: a reader knows it or refuses it."""

DEFINITION: Final = "bitstep-1"
"""Definition of the fingerprint whose sums the digest column holds."""

_WORD = pa.dictionary(pa.int32(), pa.utf8())
_INT64_LIST = pa.list_(pa.field("item", pa.int64(), nullable=False))
PLACE_TYPE = pa.struct(
    [
        pa.field("kind", pa.utf8(), nullable=False),
        pa.field("offsets", _INT64_LIST, nullable=False),
        pa.field("sizes", _INT64_LIST, nullable=False),
    ]
)

_COLUMNS: Final = (
    ("seq", pa.int64()),
    ("step", pa.int64()),
    ("rank", pa.int32()),
    ("phase", _WORD),
    ("pass", _WORD),
    ("microbatch", pa.int32()),
    ("module", _WORD),
    ("op", _WORD),
    ("occurrence", pa.int32()),
    ("slot", _WORD),
    ("part", _WORD),
    ("digest", pa.uint64()),
    ("dtype", _WORD),
    ("shape", _INT64_LIST),
    ("place", PLACE_TYPE),
    ("version", pa.int64()),
    ("writer", pa.int64()),
    ("flags", pa.uint32()),
)

WORD_COLUMNS: Final = tuple(name for name, kind in _COLUMNS if kind == _WORD)
"""The columns of strings: each string once per file, an int32 id in the row."""

SCHEMA: Final = pa.schema(
    [pa.field(name, kind, nullable=name == "place") for name, kind in _COLUMNS],
    metadata={"bitstep.format": str(FORMAT), "bitstep.definition": DEFINITION},
)

DIED: Final = "the program died: "
"""How the reason of the gap begins that a recorder writes at the end of a program that raised."""


def check_version(where: str, version: object, definition: object) -> None:
    """Raise TraceError, naming both, unless format and definition are the ones we read."""
    if version != FORMAT:
        raise TraceError(
            f"{where}: written in trace format {version!r}, this bitstep reads {FORMAT}: "
            "read it with the bitstep that wrote it"
        )
    if definition != DEFINITION:
        raise TraceError(
            f"{where}: holds fingerprints of definition {definition!r}, this bitstep compares "
            f"{DEFINITION!r}: record the run again"
        )


def metric_bits(value: float | int, dtype: str) -> int:
    """The bits of a metric as an unsigned number, below 2^32 for float32 and 2^64 otherwise.

    `dtype` is float32, float64 or int64. Exact, for -0.0 and every NaN too: a value that `dtype`
    cannot hold raises TraceError, because rounding it would make two different values equal.
    """
    if dtype == "int64":
        if not (isinstance(value, int) and -(2**63) <= value < 2**63):
            raise TraceError(f"metric {value!r} is no int64: record it as float64")
        return value % 2**64
    bits = _float64_bits(float(value))
    if dtype == "float64":
        return bits
    if dtype != "float32":
        raise TraceError(f"metric dtype {dtype!r} is not known: use float32, float64 or int64")
    narrow = _narrow(bits)
    if narrow is None or _widen(narrow) != bits:
        raise TraceError(f"metric {value!r} is no float32: record it as float64")
    return narrow


def metric_value(bits: int, dtype: str) -> float | int:
    """The inverse of `metric_bits`. Raises TraceError if `bits` does not fit `dtype`."""
    width = 32 if dtype == "float32" else 64
    if not 0 <= bits < 2**width:
        raise TraceError(f"metric bits {bits:#x} do not fit {dtype}: the row is not a {dtype}")
    if dtype == "int64":
        return bits - 2**64 if bits >= 2**63 else bits
    if dtype not in ("float32", "float64"):
        raise TraceError(f"metric dtype {dtype!r} is not known: use float32, float64 or int64")
    wide = _widen(bits) if dtype == "float32" else bits
    value: float = struct.unpack("<d", wide.to_bytes(8, "little"))[0]
    return value


def _float64_bits(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little")


def _widen(bits: int) -> int:
    """Bits of the float64 that equals a float32. By hand for NaN: the processor sets a NaN's
    quiet bit when it converts, which would change the payload."""
    sign, rest = bits >> 31, bits & 0x7FFFFFFF
    if rest > 0x7F800000:
        return sign << 63 | 0x7FF << 52 | (rest & 0x7FFFFF) << 29
    return _float64_bits(struct.unpack("<f", bits.to_bytes(4, "little"))[0])


def _narrow(bits: int) -> int | None:
    """Bits of the float32 nearest to a float64, or None where there is none."""
    sign, rest = bits >> 63, bits & (2**63 - 1)
    if rest > 0x7FF << 52:
        return sign << 31 | 0xFF << 23 | (rest >> 29 & 0x7FFFFF)
    try:
        packed = struct.pack("<f", struct.unpack("<d", bits.to_bytes(8, "little"))[0])
    except OverflowError:
        return None
    return int.from_bytes(packed, "little")
