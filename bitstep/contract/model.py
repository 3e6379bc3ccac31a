"""The module tree of a model: a digest that is compared, and a few lines that a person reads.

1. The digest is over the class of every module and the name, dtype and shape of every tensor in
   order. Of a sharded tensor it is the logical shape: other processes are no other model.
2. The lines stop at DEPTH; what is numbered (`blocks.0`, `blocks.1`) is one line.

>>> models([("Net", torch.nn.Sequential(torch.nn.Linear(2, 1)))])  # doctest: +SKIP
{'Net': {'digest': '...', 'parameters': 3, 'tree': ['Sequential', '*: Linear']}}
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

DEPTH: Final = 3
LINES: Final = 40
MOST: Final = 16
"""Models of a program that are kept, at most."""


def models(roots: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Nested table for the manifest, by the names of the roots."""
    return {
        re.sub(r"[^A-Za-z0-9_-]", "-", name)[:100]: _model(root)
        for name, root in list(roots)[:MOST]
    }


def _model(root: Any) -> dict[str, Any]:
    modules = list(root.named_modules())
    digest = hashlib.sha256()
    for line in (*(f"{path}:{_kind(module)}" for path, module in modules), *_tensors(root)):
        digest.update(line.encode("utf-8", "surrogateescape") + b"\0")
    return {
        "digest": digest.hexdigest()[:16],
        "parameters": sum(_size(parameter) for parameter in root.parameters()),
        "tree": _tree(modules),
    }


def _tensors(root: Any) -> Iterator[str]:
    for kind, named in (("p", root.named_parameters()), ("b", root.named_buffers())):
        for name, tensor in named:
            yield f"{kind} {name} {tensor.dtype} {_shape(tensor)}"


def _shape(tensor: Any) -> list[int] | None:
    try:
        return list(tensor.shape)
    except RuntimeError:  # a lazy parameter has none yet
        return None


def _size(tensor: Any) -> int:
    size = 1
    for extent in _shape(tensor) or ():
        size *= extent
    return size


def _kind(module: Any) -> str:
    """The class as the program knows it: FSDP2 makes one of its own."""
    kind = type(module).__name__
    sharded = any(base.__name__ == "FSDPModule" for base in type(module).__mro__)
    return kind.removeprefix("FSDP") if sharded else kind


def _tree(modules: Iterable[tuple[str, Any]]) -> list[str]:
    lines: Counter[str] = Counter()
    for path, module in modules:
        parts = ["*" if part.isdecimal() else part for part in path.split(".") if part]
        if len(parts) <= DEPTH:
            lines[": ".join(filter(None, (".".join(parts), _kind(module))))] += 1
    shown = [line if n == 1 else f"{line} x {n}" for line, n in lines.items()]
    more = len(shown) - LINES
    return shown if more <= 0 else [*shown[:LINES], f"and {more} more"]
