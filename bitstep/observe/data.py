"""The work of a DataLoader in this process belongs to the phase `data`.

Making an iterator draws a number from the default generator even where nothing is shuffled; it is
recorded as the draw that it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, dataloader

from bitstep.observe.undo import Undo


def attach(hooks: Any, scope: Any, undo: Undo) -> None:
    """Label what loaders do, and tell `hooks` that work on a batch begins."""
    iterator = dataloader._BaseDataLoaderIter
    undo.replace(iterator, "__next__", _labelled(hooks, scope, iterator.__next__))
    undo.replace(DataLoader, "__iter__", _labelled(hooks, scope, DataLoader.__iter__))


def _labelled(hooks: Any, scope: Any, original: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not scope.is_ours():
            return original(*args, **kwargs)
        hooks.new_work()
        with scope.in_phase("data"):
            return original(*args, **kwargs)

    return call
