"""A 64-bit key from words: where every random draw of a run starts.

Draws are keyed by what they are for (seed, step, logical rank, module) and never by how many draws
came before them, so there is no generator state to lose, to shift or to save.

>>> key("data", 7, 0) == key("data", 7, 0), key("data", 7, 0) == key("data", 70)
(True, False)
"""

from __future__ import annotations

import hashlib


def key(*words: str | int) -> int:
    """The unsigned 64-bit BLAKE2b digest of the words, each with its kind and length before it.

    The length keeps ("ab", "c") apart from ("a", "bc"); the kind keeps 7 apart from "7".
    """
    digest = hashlib.blake2b(digest_size=8, person=b"bitstep-key")
    for word in words:
        text = str(word).encode()
        kind = b"i" if isinstance(word, int) else b"s"
        digest.update(kind + len(text).to_bytes(4, "little") + text)
    return int.from_bytes(digest.digest(), "little")
