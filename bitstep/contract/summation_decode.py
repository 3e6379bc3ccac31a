"""From the results of crafted sums to the order in which a group added them. NumPy, no torch.

1. A probe asks about two ranks: one gives +BIG, one gives -BIG, every other gives 1. What is added
   before the two meet is lost in BIG; what comes later counts. So the result is
   n - (how many ranks lie under the node where the two meet).
2. Those sizes for all pairs fix the binary tree, whatever it is: `tree_of` builds it or says that
   there is none. (Float addition commutes, so left and right of a node are not told apart.)
3. Orders that have a name get it: rings, balanced trees.

Exact for up to EXACT ranks. With more, pairs are too many: neighbours, and each rank with rank 0,
are probed, and the order is looked up among rings and balanced trees; another stays undecoded.

>>> sizes = np.array([[4, 4, 4, 3, 3, 2]])  # pairs (0,1) (0,2) (0,3) (1,2) (1,3) (2,3)
>>> tree_of(sizes[0], 4)
(((2, 3), 1), 0)
>>> expression(tree_of(sizes[0], 4), "abcd")
'((c+d)+b)+a'
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Sizes: TypeAlias = npt.NDArray[np.int32]
"""Per probe, how many ranks lie under the node where its pair meets; 0 where that is no answer."""
Results: TypeAlias = npt.NDArray[np.float32]
"""What probes gave, or add up to."""
Tree: TypeAlias = Any
"""A rank of the group, or a pair of trees: the larger first, then the one with the lower rank."""

BIG: Final = 2.0**100
"""Swallows any sum of ones in float32 and bfloat16."""
EXACT: Final = 64
"""Ranks up to which every tree is told from every other."""


@lru_cache(maxsize=8)
def pairs(ranks: int) -> npt.NDArray[np.int64]:
    """[probes, 2]: the two ranks that each probe asks about."""
    if ranks <= EXACT:
        return np.stack(np.triu_indices(ranks, 1), axis=1)
    near = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    return np.array(near + [(0, rank) for rank in range(2, ranks - 1)])


def probes(ranks: int, rank: int) -> Results:
    """[probes]: what this rank of the group gives."""
    values = np.ones(len(pairs(ranks)), dtype=np.float32)
    values[pairs(ranks)[:, 0] == rank] = BIG
    values[pairs(ranks)[:, 1] == rank] = -BIG
    return values


def sizes_in(results: Results, ranks: int) -> Sizes:
    """The answers in the sums of probes, of any shape; 0 where a sum is not a whole count."""
    with np.errstate(invalid="ignore"):
        counts = results.astype(np.int32)
    valid = (results == counts) & (counts >= 0) & (counts <= ranks - 2)
    return np.where(valid, ranks - counts, 0).astype(np.int32)


def sums_of(sizes: Sizes, ranks: int) -> Results:
    """What the probes of an order add up to."""
    return (ranks - sizes).astype(np.float32)


# -- one order ---------------------------------------------------------------------------------


def tree_of(sizes: Sizes, ranks: int) -> Tree | None:
    """The tree with these sizes [probes], for up to EXACT ranks; None if there is no such tree."""
    table = np.zeros((ranks, ranks), dtype=np.int64)
    first, second = pairs(ranks).T
    table[first, second] = table[second, first] = sizes
    return _split(table, np.arange(ranks))


def _split(table: npt.NDArray[np.int64], members: npt.NDArray[np.int64]) -> Tree | None:
    if len(members) == 1:
        return int(members[0])
    # Those that meet the first member below the top are its side of the top.
    inside = (table[members[0], members] < len(members)) & (table[members[0], members] > 0)
    inside[0] = True
    left, right = members[inside], members[~inside]
    if len(right) == 0 or (table[np.ix_(left, right)] != len(members)).any():
        return None
    trees = (_split(table, left), _split(table, right))
    if None in trees:
        return None
    return trees if len(left) >= len(right) else trees[::-1]


def expression(tree: Tree, names: Sequence[Any]) -> str:
    """The tree as a sum; `names` are the members, by their rank in the group."""
    return _text(tree, names).removeprefix("(").removesuffix(")")


def _text(tree: Tree, names: Sequence[Any]) -> str:
    if isinstance(tree, int):
        return str(names[tree])
    return f"({_text(tree[0], names)}+{_text(tree[1], names)})"


def relabelled(tree: Tree, names: Sequence[int]) -> Tree:
    """The same tree with other names for the ranks, in the same normal form."""
    return _normal(tree, names)[0]


def _normal(tree: Tree, names: Sequence[int]) -> tuple[Tree, int, int]:
    if isinstance(tree, int):
        return names[tree], 1, names[tree]
    sides = [_normal(side, names) for side in tree]
    sides.sort(key=lambda side: (-side[1], side[2]))
    (left, many, low), (right, few, lowest) = sides
    return (left, right), many + few, min(low, lowest)


def ring(ranks: int, start: int, step: int) -> Sizes:
    """One rank after the other, from `start` on, up (step 1) or down (-1)."""
    first, second = pairs(ranks).T
    place = (np.arange(ranks, dtype=np.int32) - start) * step % ranks
    sizes: Sizes = np.maximum(place[first], place[second]) + 1
    return sizes


# -- orders with a name ------------------------------------------------------------------------


def ring_start(sizes: Sizes, ranks: int, step: int) -> int | None:
    """The rank that a ring starts at; None if this is not one that goes this way."""
    first_two = {int(rank) for pair in pairs(ranks)[sizes == 2] for rank in pair}
    starts = (start for start in sorted(first_two) if (sizes == ring(ranks, start, step)).all())
    return next(starts, None)


def balanced(ranks: int, far: bool) -> Sizes | None:
    """Sizes of the tree that adds pairs, then pairs of pairs; neighbours first, or halves first."""
    if ranks & (ranks - 1):
        return None
    first, second = pairs(ranks).T
    other = first ^ second
    lowest = other & -other
    highest = 1 << np.floor(np.log2(other)).astype(np.int64)
    sizes: Sizes = (ranks // lowest if far else 2 * highest).astype(np.int32)
    return sizes


def name_of(sizes: Sizes, ranks: int, names: Sequence[int] | None = None) -> str:
    """What this order is called; "" for one without a name. Two ranks have one order: no name."""
    if ranks == 2:
        return ""
    for step, way in ((-1, "down"), (1, "up")):
        start = ring_start(sizes, ranks, step)
        if start is not None:
            return f"ring {way} from {names[start] if names else start}"
    for far, words in ((False, "balanced tree"), (True, "balanced tree, halves first")):
        tree = balanced(ranks, far)
        if tree is not None and (sizes == tree).all():
            return words
    return ""
