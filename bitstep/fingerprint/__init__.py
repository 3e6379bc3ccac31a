"""The fingerprint: 64 bits for the bits of one logical tensor, equal on every device.

1. `fingerprint(tensor)` reads a whole tensor.
2. `part(local, place)` reads a part of one; `merge` adds parts; `complete` makes the whole.
3. `root(named)` digests many fingerprints, independent of their order.

`nbytes`, `merge`, `complete` and `root` need no torch, and importing this package does not load
it. The other names load torch and the compiled kernels when they are first asked for.

>>> complete(merge([Part(3, 4), Part(5, 4)]), "float32", (2,)).sum
8
"""

from typing import TYPE_CHECKING

from bitstep.fingerprint.definition import DEFINITION, complete, merge, nbytes, root
from bitstep.records import Part

if TYPE_CHECKING:
    from bitstep.fingerprint.tensors import fingerprint, part, warm

__all__ = [
    "DEFINITION",
    "Part",
    "complete",
    "fingerprint",
    "merge",
    "nbytes",
    "part",
    "root",
    "warm",
]


def __getattr__(name: str) -> object:
    """Load torch only for the names that read tensors."""
    if name not in ("fingerprint", "part", "warm"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bitstep.fingerprint import tensors

    # Kept, so that the next look-up does not come here.
    value: object = getattr(tensors, name)
    globals()[name] = value
    return value
