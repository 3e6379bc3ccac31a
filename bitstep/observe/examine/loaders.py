"""What DataLoaders yield, what they draw, and where they were made.

1. Each loader is known by the line that made it and by its number among those of that line.
2. What each `next` gives has a digest; generators that move meanwhile are named.
3. With other `workers`, every loader is made with that number of them instead.
4. `skip` has a loader lose its next batch: its position is perturbed.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, dataloader

from bitstep.observe.examine.draws import states
from bitstep.observe.examine.frames import where
from bitstep.observe.examine.leaves import Leaf, leaf_of, number
from bitstep.observe.examine.order import Workers

OTHER = 2
"""Workers of a loader that has none, where it is to have others."""
KEPT = 8
"""Batches of a loader whose digests are kept."""


@dataclass
class Watched:
    """One loader of the program."""

    name: str
    """ "train.py:20", or "train.py:20#1" for the second of that line."""
    dataset: str
    sampler: str
    workers: int
    is_iterable: bool
    has_generator: bool
    has_worker_init: bool
    batch: int | None
    batches: list[str] = field(default_factory=list)
    iterators: list[dict[str, Any]] = field(default_factory=list)
    """Where each was made, and what moved meanwhile."""
    drawn: list[str] = field(default_factory=list)
    """Generators that moved while a batch was made in this process."""
    given: int = 0
    """Batches of the iterator that was made last."""
    skips: int = 0
    is_alive: bool = True
    """Not, where something else has taken its place."""

    def to_json(self) -> dict[str, Any]:
        """All that is said of it."""
        return {k: v for k, v in vars(self).items() if k != "skips"}

    def position(self) -> list[Leaf]:
        """Where it stands."""
        leaves = [number(f"{self.name}.batches", self.given)]
        return [*leaves, number(f"{self.name}.epochs", len(self.iterators))]


class Loaders:
    """Every DataLoader of this process."""

    def __init__(self, workers: Workers, note: Callable[..., None]) -> None:
        self._workers = workers
        self._note = note
        self._watched: list[tuple[weakref.ref[Any], Watched]] = []
        self._iterators: list[tuple[weakref.ref[Any], Watched]] = []
        self._pid = os.getpid()

    def __iter__(self) -> Iterator[Watched]:
        for loader, watched in self._watched:
            watched.is_alive = loader() is not None
            yield watched

    def forked(self) -> None:
        """This process is a child that goes on as the program."""
        self._pid = os.getpid()

    def attach(self) -> None:
        """Wrap the making of loaders and iterators, and `next`."""
        made, began = DataLoader.__init__, DataLoader.__iter__
        iterator: Any = dataloader._BaseDataLoaderIter
        gave = iterator.__next__
        names = list(inspect.signature(made).parameters)[1:]

        @functools.wraps(made)
        def make(loader: Any, *args: Any, **kwargs: Any) -> None:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            made(loader, **self._changed(given))
            self._meet(loader, given)

        @functools.wraps(began)
        def begin(loader: Any) -> Any:
            before = states()
            found = began(loader)
            watched = self._of(self._watched, loader)
            if watched is not None and os.getpid() == self._pid:
                drew = _moved(before)
                watched.iterators.append({"where": where(), "drew": drew})
                watched.given = 0
                self._iterators.append((weakref.ref(found), watched))
                if drew:
                    self._note("iter(DataLoader)", watched.name, drew=", ".join(drew))
            return found

        @functools.wraps(gave)
        def give(of: Any) -> Any:
            watched = self._of(self._iterators, of)
            if watched is None or os.getpid() != self._pid:
                return gave(of)
            while watched.skips:
                watched.skips -= 1
                gave(of)
            before = states()
            batch = gave(of)
            watched.given += 1
            watched.drawn = sorted({*watched.drawn, *_moved(before)})
            if len(watched.batches) < KEPT:
                watched.batches.append(digest(batch))
            return batch

        kind: Any = DataLoader
        kind.__init__, kind.__iter__ = make, begin
        iterator.__next__ = give

    def _changed(self, given: dict[str, Any]) -> dict[str, Any]:
        had = given.get("num_workers", 0)
        if self._workers == "as given" or (self._workers == "none" and not had):
            return given
        workers = 0 if had else OTHER
        changed = {**given, "num_workers": workers}
        if not workers:
            of_workers = ("prefetch_factor", "persistent_workers", "timeout", "in_order")
            for name in (*of_workers, "multiprocessing_context"):
                changed.pop(name, None)
        return changed

    def _meet(self, loader: Any, given: Mapping[str, Any]) -> None:
        line = where()
        same = sum(w.name.partition("#")[0] == line for w in self)
        self._watched.append(
            (
                weakref.ref(loader),
                Watched(
                    name=f"{line}#{same}" if same else line,
                    dataset=type(loader.dataset).__name__,
                    sampler=type(getattr(loader, "sampler", None)).__name__,
                    workers=given.get("num_workers", 0),
                    is_iterable=isinstance(loader.dataset, IterableDataset),
                    has_generator=loader.generator is not None,
                    has_worker_init=loader.worker_init_fn is not None,
                    batch=loader.batch_size,
                ),
            )
        )

    @staticmethod
    def _of(known: list[tuple[weakref.ref[Any], Watched]], wanted: Any) -> Watched | None:
        return next((watched for found, watched in known if found() is wanted), None)


def _moved(before: Mapping[str, str]) -> list[str]:
    return sorted(name for name, state in states().items() if before.get(name, state) != state)


def digest(batch: Any) -> str:
    """A digest of everything in a batch: tensors, arrays, numbers and words, in order."""
    found = hashlib.blake2b(digest_size=8)
    for word in _words(batch, 0):
        found.update(word.encode("utf-8", "backslashreplace") + b"\0")
    return found.hexdigest()


def _words(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, Tensor | np.ndarray | np.generic):
        leaf = leaf_of("", value)
        yield (
            leaf.digest
            if leaf is not None and leaf.digest[:6] != "unread"
            else type(value).__name__
        )
    elif isinstance(value, int | float | str | bytes | type(None)):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, Mapping) and depth < 8:
        for key, item in value.items():
            yield str(key)
            yield from _words(item, depth + 1)
    elif isinstance(value, list | tuple) and depth < 8:
        for item in value:
            yield from _words(item, depth + 1)
    elif depth < 8 and hasattr(value, "__dict__"):
        yield from _words(dict(vars(value)), depth + 1)
    else:
        yield type(value).__name__
