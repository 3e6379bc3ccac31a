"""Manifests that an older bitstep collected: fewer keys, and some under another name.

1. `version_of` says by which collection a manifest was made: its key "manifest.version", or 1.
2. `upgraded` gives its keys the names that they have now.
3. `not_collected` says whether a key is absent because nobody looked: no difference, then.

A new key of a later collection gets a line in SINCE, and nothing else has to be done.

>>> not_collected("groups.world.ranks", version=1), not_collected("data.digest", version=1)
(True, False)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

VERSION: Final = 2
"""Of the collection that this bitstep makes."""
KEY: Final = "manifest.version"
NOT_COLLECTED: Final = "(not collected)"
"""Stands in a Difference for the value of a key for which an older collection did not look."""
DIGEST: Final = "sha256:"
"""Begins a value that is kept as a digest only."""

RENAMED: Final = {
    f"software.{name}": f"software.distributions.{name}"
    for name in ("numpy", "numba", "llvmlite", "pyarrow", "triton")
}
"""Names of version 1, which had a few distributions, whether or not they were imported."""

SINCE: Final[tuple[tuple[str, int], ...]] = (
    (KEY, 2),
    ("hardware.gpus.*", 2),
    ("software.distributions.*", 2),
    ("software.driver", 2),
    ("software.kernel", 2),
    ("software.openmp", 2),
    ("software.blas", 2),
    ("software.torch.cxx", 2),
    ("settings.inductor.*", 2),
    ("settings.triton.*", 2),
    ("settings.precision.fp16_accumulation", 2),
    ("settings.hash_randomization", 2),
    ("settings.optimize", 2),
    ("caches.*", 2),
    ("arguments.*", 2),
    ("data.named.*", 2),
    ("model.*", 2),
    ("groups.*", 2),
    ("layout.physical.groups.*", 2),
    ("layout.physical.model.*", 2),
    ("layout.physical.nodes", 2),
    ("layout.physical.hosts", 2),
    ("program.uncommitted", 2),
    *((f"environment.{pattern}", 2) for pattern in (
        "BLIS_*", "FLASH_*", "GLIBC_TUNABLES", "GLOO_*", "LD_PRELOAD", "NPY_*", "NUMBA_*",
        "NVIDIA_VISIBLE_*", "OPENBLAS_*", "PYTHONOPTIMIZE", "PYTORCH_*", "TORCHDYNAMO_*", "TORCH_*",
        "TRITON_*", "UCX_*",
    )),
)  # fmt: skip
"""(pattern, version of the collection that had it first)."""


def version_of(keys: Mapping[str, Any]) -> int:
    """Of the collection that made these keys."""
    found = keys.get(KEY, 1)
    return found if type(found) is int else 1


def upgraded(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys under the names that they have now; null of version 1 is absent."""
    if version_of(keys) >= VERSION:
        return dict(keys)
    kept = {key: value for key, value in keys.items() if value is not None or key not in RENAMED}
    return {RENAMED.get(key, key): value for key, value in kept.items()}


def not_collected(key: str, version: int) -> bool:
    """Whether a collection of this version did not look for the key."""
    return next((version < since for p, since in SINCE if fnmatchcase(key, p)), False)


def digest_of(text: str) -> str:
    """What is kept in the place of a text that is not kept: "sha256:" and 16 hex digits."""
    return DIGEST + hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def comparable(value: Any, other: Any) -> Any:
    """The value as it compares with the other: a text as its digest, if the other is one."""
    if isinstance(value, str) and isinstance(other, str) and other.startswith(DIGEST):
        return value if value.startswith(DIGEST) else digest_of(value)
    return value
