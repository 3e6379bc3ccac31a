"""What the files of a checkpoint are called and what they say. No torch, no tensor is read here.

1. Names: `step-00000020/` holds `rank-00000.safetensors` for each process that wrote, `state.json`,
   `index.json` and the marker `COMPLETE`; nothing else.
2. JSON is canonical: one value has one text, and a text that is not canonical is refused.
3. The index names every tensor, every part and every file; the marker vouches for the index.

>>> step_name(20), rank_name(1), canonical({"b": 1.0, "a": [2]})
('step-00000020', 'rank-00001.safetensors', b'{"a":[2],"b":1.0}\\n')
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from bitstep.errors import CheckpointError
from bitstep.fingerprint import DEFINITION

FORMAT = 1
MARKER, INDEX, VALUES = "COMPLETE", "index.json", "state.json"

Json = Any
Count = Annotated[int, Field(ge=0, lt=2**63)]
Sum = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Sums = tuple[Sum, Sum]
"""The sums of both tables of the fingerprint, in hexadecimal: JSON tools round integers to 2^53."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What one file must be."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class PartEntry:
    """Where one part of a logical tensor lies: in which file, and as which box of the tensor."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    file: str
    key: str
    offsets: tuple[Count, ...]
    sizes: tuple[Count, ...]
    sums: Sums


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One logical tensor. Parts without elements are not listed."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    stream: str
    name: str
    dtype: str
    shape: tuple[Count, ...]
    sums: Sums
    parts: tuple[PartEntry, ...]

    @property
    def path(self) -> str:
        """Stream and name, as in `Piece.path`."""
        return f"{self.stream}/{self.name}"


@dataclass(frozen=True, slots=True)
class Index:
    """The content of `index.json`."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    definition: str
    files: dict[str, FileEntry]
    format: int
    root: Sum
    step: Count
    tensors: tuple[TensorEntry, ...]
    world: Annotated[int, Field(ge=1, lt=2**31)]


_INDEX = TypeAdapter(Index)


def step_name(step: int) -> str:
    """The name of the folder of one step."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step that a folder name stands for, or None where it is not exactly such a name."""
    match = re.fullmatch(r"step-([0-9]{8,18})", name)
    return int(match[1]) if match and step_name(int(match[1])) == name else None


def rank_name(rank: int) -> str:
    """The name of the file that one process wrote."""
    return f"rank-{rank:05d}.safetensors"


def part_key(path: str, offsets: tuple[int, ...]) -> str:
    """The key of a part in its file: unique, since no two parts of a tensor start together."""
    return f"{path}@{','.join(map(str, offsets))}"


def hexadecimal(number: int) -> str:
    """An unsigned 64-bit number as 16 digits."""
    return f"{number:016x}"


def canonical(value: Json) -> bytes:
    """The one text of a JSON value: sorted keys, no spaces, ASCII, a newline at the end."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode() + b"\n"


def parse(text: bytes, name: str) -> Json:
    """The value of a canonical text. Raises CheckpointError for any other text.

    Comparing with the text that the value would have refuses doubled keys, NaN, odd spacing and
    every second way to write a number, without a rule for each.
    """
    try:
        value = json.loads(text)
        same = canonical(value) == text
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name} is not JSON ({error}); use another checkpoint") from None
    if not same:
        raise CheckpointError(f"{name} is not canonical JSON; use another checkpoint")
    return value


def check_values(values: dict[str, dict[str, Json]]) -> None:
    """Raise CheckpointError where a value would not come back from JSON with the same bits."""
    for stream, value in values.items():
        where = _inexact(value, stream) if type(value) is dict else stream
        if where is not None:
            raise CheckpointError(
                f"the value {where} is not plain JSON (finite float, int, str, bool, None, list, "
                "dict with str keys) and would not come back exactly; encode it before saving"
            )


def _inexact(value: Json, where: str) -> str | None:
    """Where in a value something is that JSON changes: a tuple, a NaN, a key that is no string."""
    if type(value) is dict:
        odd = next((f"{where}[{key!r}]" for key in value if type(key) is not str), None)
        found = (_inexact(inner, f"{where}.{key}") for key, inner in value.items())
        return odd or next((place for place in found if place), None)
    if type(value) is list:
        found = (_inexact(inner, f"{where}[{n}]") for n, inner in enumerate(value))
        return next((place for place in found if place), None)
    finite = type(value) is not float or value - value == 0
    return None if finite and type(value) in (float, int, str, bool, type(None)) else where


def index_text(index: Index) -> bytes:
    """The bytes of `index.json`."""
    return canonical(asdict(index))


def parse_index(text: bytes, name: str) -> Index:
    """The index that a text holds: right in form; `folder.py` checks that it makes sense."""
    value = parse(text, name)
    version = value.get("format") if type(value) is dict else None
    if type(version) is int and version > FORMAT:
        raise CheckpointError(
            f"{name} has format {version}; this bitstep reads up to {FORMAT}: install a newer one"
        )
    if version != FORMAT or value.get("definition") != DEFINITION:
        raise CheckpointError(
            f"{name} is not an index of format {FORMAT} with fingerprints {DEFINITION}"
        )
    try:
        return _INDEX.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{name}: {where}: {first['msg']}; use another checkpoint") from None


def marker_text(index: bytes) -> bytes:
    """The bytes of `COMPLETE` for these bytes of `index.json`.

    The last field is a checksum of the others, so that a damaged marker and a damaged index can be
    told apart.
    """
    fields: Json = {
        "format": FORMAT,
        "index_bytes": len(index),
        "index_sha256": sha256(index).hexdigest(),
    }
    return canonical(fields | {"self_sha256": sha256(canonical(fields)).hexdigest()})


def check_marker(marker: bytes, index: bytes, folder: str) -> None:
    """Raise CheckpointError unless the marker is, byte for byte, the one of this index."""
    if marker == marker_text(index):
        return
    fields = parse(marker, f"{folder}/{MARKER}")
    own = fields.pop("self_sha256", None) if type(fields) is dict else None
    if own is None or own != sha256(canonical(fields)).hexdigest():
        raise CheckpointError(f"{folder}/{MARKER} is damaged; use another checkpoint")
    version = fields.get("format")
    if type(version) is int and version > FORMAT:
        raise CheckpointError(
            f"{folder}/{MARKER} has format {version}; this bitstep reads up to {FORMAT}: "
            "install a newer one"
        )
    raise CheckpointError(
        f"{folder}/{INDEX} is not the index that {MARKER} vouches for: damaged, or of another "
        "checkpoint; use another one"
    )
