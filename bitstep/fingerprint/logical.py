"""The logical root of a stream: 64 bits over logical tensors, whatever the cut. Loads no torch.

1. `contribution` is what a tensor, or a part of one, adds: an odd number from its name, slot,
   dtype and logical shape, times its sum.
2. Sums of parts add up to the sum of their tensor, so contributions do, too: over the parts of a
   tensor, over tensors, over processes, in any order, modulo 2^64. Nothing is gathered.

Any one tensor that differs changes the total, for an odd factor loses no bit. That several
differences cancel has a probability of about 2^-64; it is no signature.

>>> whole = contribution("w", "param", "float32", (2, 3), 5 + 7)
>>> parts = [contribution("w", "param", "float32", (2, 3), part) for part in (5, 7)]
>>> whole == sum(parts) % 2**64
True
"""

from __future__ import annotations

import functools
import hashlib


def contribution(name: str, slot: str, dtype: str, shape: tuple[int, ...], total: int) -> int:
    """What a part of a logical tensor adds to the logical root of its stream.

    Args:
        name, slot, dtype: of the logical tensor: "decoder.layers.3.mlp.linear_fc1.weight", "param",
            "float32".
        shape: of the logical tensor.
        total: the sum of the part in its place, as `fingerprint.part` gives it.
    """
    return _factor(name, slot, dtype, tuple(shape)) * total % 2**64


@functools.cache
def _factor(name: str, slot: str, dtype: str, shape: tuple[int, ...]) -> int:
    """An odd number for each logical tensor."""
    words = (name, slot, dtype, ",".join(map(str, shape)))
    digest = hashlib.blake2b(digest_size=8, person=b"bitstep-logical")
    for word in words:
        text = word.encode("utf-8", "backslashreplace")
        digest.update(len(text).to_bytes(4, "little") + text)
    return int.from_bytes(digest.digest(), "little") | 1
