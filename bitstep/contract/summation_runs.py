"""The orders in which the elements of one buffer were added, and where it is cut.

1. `filled` fills a buffer with probes from end to end, in more than one round where it is so small
   that a rank's share of it would not see every probe.
2. `runs_of` reads the order at the first element, goes on to the first element that it does not
   explain, reads the order there, and so on.

>>> sums = np.tile(sums_of(ring(4, start=3, step=-1), 4), 10)
>>> runs_of(sums[None], 4, names=range(4))
(Run(start=0, end=60, order='((2+3)+1)+0', name='ring down from 3'),)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from bitstep.contract.summation_decode import (
    EXACT,
    Results,
    Sizes,
    expression,
    name_of,
    pairs,
    relabelled,
    ring,
    ring_start,
    sizes_in,
    sums_of,
    tree_of,
)

MOST_ROUNDS: Final = 8
LITERAL: Final = 8
"""Ranks up to which an order is always written out."""
_BLOCK: Final = 1024
"""Elements that are compared at once, at least."""


class Run(NamedTuple):
    """Neighbouring elements that were added in one order."""

    start: int
    end: int
    """Of the elements of the buffer, half open."""
    order: str
    """"((2+3)+1)+0"; with more than LITERAL ranks its name if it has one; "" if it was not read."""
    name: str
    """"ring down from 3", "balanced tree"; "" for an order without a name."""


def rounds_for(elements: int, ranks: int) -> int:
    """How many sums a buffer needs, so that half of each rank's share sees every probe."""
    return int(np.clip(-(-2 * ranks * len(pairs(ranks)) // elements), 1, MOST_ROUNDS))


def filled(values: Results, elements: int, rounds: int) -> Iterator[Results]:
    """Per round a buffer full of `values` [probes], in each round another part of them first."""
    for number in range(rounds):
        rolled = np.roll(values, -number * _width(len(values), rounds))
        yield np.tile(rolled, -(-elements // len(values)))[:elements]


def _width(probes: int, rounds: int) -> int:
    """Neighbouring elements that see every probe between them, over the rounds."""
    return -(-probes // rounds)


def runs_of(results: Results, ranks: int, names: Sequence[int]) -> tuple[Run, ...]:
    """Where in a buffer the order changes, from the sums [rounds, elements] of `filled` probes.

    `names` are the members, by their rank in the group. What cannot be read is a last run without
    an order.
    """
    elements = results.shape[1]
    found: list[_Found] = []
    at = 0
    while at < elements and len(found) < 4 * ranks + 16:
        order = _order_at(results, at, ranks, [run.order for run in found])
        if order is None:
            break
        pattern = _pattern(order, ranks, len(results))
        least = max(found[-1].least + 1, at - pattern.shape[1]) if found else 0
        found.append(_Found(_first(results, pattern, least, at), at, order))
        at = _last(results, pattern, at)
    words = [_words(run.order.tobytes(), ranks, tuple(names)) for run in found]
    cuts = [*_cuts(found), at]
    runs = [Run(cuts[k], cuts[k + 1], *said) for k, said in enumerate(words) if said]
    return tuple(runs if at >= elements else [*runs, Run(at, elements, "", "")])


class _Found(NamedTuple):
    least: int
    """The run starts here, or later."""
    most: int
    """The run has started here."""
    order: Sizes


def _order_at(results: Results, at: int, ranks: int, known: list[Sizes]) -> Sizes | None:
    """The order that holds from this element on."""
    rounds, elements = results.shape
    count = len(pairs(ranks))
    width = _width(count, rounds)
    window = sizes_in(results[:, at : at + width], ranks)
    places = (np.arange(at, at + window.shape[1]) + width * np.arange(rounds)[:, None]) % count
    if at + width > elements:
        # Too few elements are left to read an order that nobody has seen: it is one of these.
        likely = [o for o in _like(known, ranks) if (o[places] == window).all()]
        return likely[0] if len(likely) == 1 else None
    order = np.zeros(count, dtype=np.int32)
    order[places] = window
    return order if _words(order.tobytes(), ranks, tuple(range(ranks))) else None


def _like(known: list[Sizes], ranks: int) -> list[Sizes]:
    """All rings where those before were rings, else what was before."""
    for step in (-1, 1):
        if known and all(ring_start(order, ranks, step) is not None for order in known):
            return [ring(ranks, start, step) for start in range(ranks)]
    return known[:1]


def _pattern(order: Sizes, ranks: int, rounds: int) -> Results:
    """[rounds, a multiple of the probes]: what this order gives, from element 0 of a buffer on."""
    length = len(order) * -(-_BLOCK // len(order))
    return np.stack(list(filled(sums_of(order, ranks), length, rounds)))


def _last(results: Results, pattern: Results, at: int) -> int:
    """The first element from `at` on that another order added."""
    elements, width = int(results.shape[1]), int(pattern.shape[1])
    pattern = np.roll(pattern, -at, axis=1)
    while at < elements:
        stop = min(elements, at + width)
        rows = zip(results[:, at:stop], pattern, strict=True)
        first = min(_mismatch(row, wanted) for row, wanted in rows)
        if first < stop - at:
            return at + first
        at, width = stop, 2 * width
    return elements


def _mismatch(row: Results, pattern: Results) -> int:
    """The first element that is not as in the repeated pattern; the length where all are."""
    whole = len(row) - len(row) % len(pattern)
    wrong = (row[:whole].reshape(-1, len(pattern)) != pattern).ravel()
    if not wrong.any():
        wrong = np.append(wrong, row[whole:] != pattern[: len(row) - whole])
    return int(wrong.argmax()) if wrong.any() else len(row)


def _first(results: Results, pattern: Results, least: int, at: int) -> int:
    """The first element from `least` on of which this order explains all up to `at`."""
    before = np.roll(pattern, -least, axis=1)[:, : at - least]
    wrong = np.flatnonzero((results[:, least:at] != before).any(axis=0))
    return least + int(wrong[-1]) + 1 if len(wrong) else least


def _cuts(found: Sequence[_Found]) -> list[int]:
    """Where each run starts. Two orders may explain the elements at a cut: equal chunks decide."""
    later = list(enumerate(found))[1:]
    least = max((-(-run.least // number) for number, run in later), default=0)
    most = min((run.most // number for number, run in later), default=0)
    if least > most:
        return [run.most for run in found]
    chunk = max(range(least, most + 1), key=lambda length: (length & -length, -length))
    return [chunk * number for number in range(len(found))]


@lru_cache(maxsize=1024)  # the orders of one size are those of the next
def _words(order: bytes, ranks: int, names: tuple[int, ...]) -> tuple[str, str] | None:
    """The order of a Run and its name; None if no order gives these sizes."""
    sizes = np.frombuffer(order, dtype=np.int32)
    name = name_of(sizes, ranks, names)
    if name and ranks > LITERAL:
        return name, name
    tree = tree_of(sizes, ranks) if ranks <= EXACT else None
    return tree and (expression(relabelled(tree, names), range(max(names) + 1)), name)
