"""Align two sequences of calls: which call of one run is which call of the other.

1. Equal beginnings and ends are cut off.
2. What stands once in each is an anchor; the longest increasing row of anchors is kept (patience).
   Marks are tried first, then contents: before runs part they find a call exactly. Then names.
3. Between anchors a longest common subsequence of names is sought, within a band: D differences,
   at most `BAND`. What is left over is missing or extra.

>>> align([1, 2, 3], [1, 9, 2, 3], [7, 8, 9], [7, 0, 8, 9], [-1, -1, -1], [-1, -1, -1, -1])
[(0, 0), (1, 2), (2, 3)]
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final

BAND: Final = 1000
"""Most insertions and deletions that are sought between two anchors."""

Pair = tuple[int, int]
Block = tuple[int, int, int, int]
"""Begin and end in a, begin and end in b."""


def align(
    names_a: Sequence[int],
    names_b: Sequence[int],
    contents_a: Sequence[int],
    contents_b: Sequence[int],
    marks_a: Sequence[int],
    marks_b: Sequence[int],
) -> list[Pair]:
    """Pairs (place in a, place in b) whose names are equal, both places increasing.

    A content is a name with the bits: equal contents imply equal names. A mark is a name that was
    called from one place in the program, or -1: the n-th of as many in both is the same call.
    """
    whole = (0, len(names_a), 0, len(names_b))
    found: list[Pair] = []
    for block in _split(_marked(marks_a, marks_b), whole, found):
        for inner in _between(contents_a, contents_b, block, found):
            for innermost in _between(names_a, names_b, inner, found):
                found += _common(names_a, names_b, innermost)
    return sorted(found)


def _between(a: Sequence[int], b: Sequence[int], block: Block, found: list[Pair]) -> list[Block]:
    """Pair what is certain in a block, add it to `found`, and give the blocks between."""
    begin_a, end_a, begin_b, end_b = _trim(a, b, block, found)
    anchors = _unique(a[begin_a:end_a], b[begin_b:end_b])
    certain = [(begin_a + i, begin_b + j) for i, j in anchors]
    blocks = _split(certain, (begin_a, end_a, begin_b, end_b), found)
    trimmed = [_trim(a, b, inner, found) for inner in blocks]
    return [inner for inner in trimmed if inner[0] < inner[1] and inner[2] < inner[3]]


def _split(certain: Sequence[Pair], block: Block, found: list[Pair]) -> list[Block]:
    """Add certain pairs to `found`, and give the blocks between them."""
    begin_a, end_a, begin_b, end_b = block
    found += certain
    blocks = []
    for at_a, at_b in [*certain, (end_a, end_b)]:
        blocks.append((begin_a, at_a, begin_b, at_b))
        begin_a, begin_b = at_a + 1, at_b + 1
    return [inner for inner in blocks if inner[0] < inner[1] and inner[2] < inner[3]]


def _marked(a: Sequence[int], b: Sequence[int]) -> list[Pair]:
    """The n-th of a mark in each, of marks that stand as often in both."""
    places: list[dict[int, list[int]]] = [{}, {}]
    for side, marks in enumerate((a, b)):
        for at, mark in enumerate(marks):
            if mark >= 0:
                places[side].setdefault(mark, []).append(at)
    pairs = [
        pair
        for mark, mine in places[0].items()
        if len(mine) == len(places[1].get(mark, ()))
        for pair in zip(mine, places[1][mark], strict=True)
    ]
    return _increasing(sorted(pairs))


def _trim(a: Sequence[int], b: Sequence[int], block: Block, found: list[Pair]) -> Block:
    """Pair the equal beginning and the equal end of a block; gives back what is left."""
    begin_a, end_a, begin_b, end_b = block
    while begin_a < end_a and begin_b < end_b and a[begin_a] == b[begin_b]:
        found.append((begin_a, begin_b))
        begin_a, begin_b = begin_a + 1, begin_b + 1
    while begin_a < end_a and begin_b < end_b and a[end_a - 1] == b[end_b - 1]:
        end_a, end_b = end_a - 1, end_b - 1
        found.append((end_a, end_b))
    return begin_a, end_a, begin_b, end_b


def _unique(a: Sequence[int], b: Sequence[int]) -> list[Pair]:
    """What stands once in each, as the longest row that increases in both."""
    count_a, count_b = Counter(a), Counter(b)
    place_b = {word: at for at, word in enumerate(b) if count_b[word] == 1}
    return _increasing(
        [(at, place_b[word]) for at, word in enumerate(a)
         if count_a[word] == 1 and word in place_b]
    )  # fmt: skip


def _increasing(pairs: Sequence[Pair]) -> list[Pair]:
    """The longest row of pairs, sorted by their first, that increases in the second as well."""
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for number, (_, j) in enumerate(pairs):
        at = bisect_left(ends, j)
        before.append(last[at - 1] if at else -1)
        ends[at : at + 1] = [j]
        last[at : at + 1] = [number]
    chosen = []
    number = last[-1] if last else -1
    while number >= 0:
        chosen.append(pairs[number])
        number = before[number]
    return chosen[::-1]


def _common(a: Sequence[int], b: Sequence[int], block: Block) -> list[Pair]:
    """A longest common subsequence by Myers' greedy search, or nothing beyond the band."""
    begin_a, end_a, begin_b, end_b = block
    size_a, size_b = end_a - begin_a, end_b - begin_b
    reach = {1: 0}
    history = []
    for cost in range(min(size_a + size_b, BAND) + 1):
        history.append(reach.copy())
        for line in range(-cost, cost + 1, 2):
            down = line == -cost or (line != cost and reach[line - 1] < reach[line + 1])
            x = reach[line + 1] if down else reach[line - 1] + 1
            y = x - line
            while x < size_a and y < size_b and a[begin_a + x] == b[begin_b + y]:
                x, y = x + 1, y + 1
            reach[line] = x
            if x >= size_a and y >= size_b:
                return [(begin_a + i, begin_b + j) for i, j in _walk(history, size_a, size_b)]
    return []


def _walk(history: Sequence[dict[int, int]], x: int, y: int) -> list[Pair]:
    """The diagonal steps of the path that Myers' search found, from its end."""
    pairs = []
    for cost in range(len(history) - 1, -1, -1):
        reach, line = history[cost], x - y
        down = line == -cost or (line != cost and reach[line - 1] < reach[line + 1])
        before = line + 1 if down else line - 1
        from_x = reach[before]
        from_y = from_x - before
        start_x = from_x if down else from_x + 1
        while x > start_x and x > 0 and y > 0:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = from_x, from_y
    return pairs
