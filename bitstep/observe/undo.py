"""Every change to somebody else's module, and the way back.

>>> undo = Undo()
>>> import math
>>> undo.replace(math, "tau", 7.0)
>>> math.tau
7.0
>>> undo.all()
>>> math.tau > 6.28 and math.tau < 6.29
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Undo:
    """What was changed, in order; `all` takes it back in reverse."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def add(self, step: Callable[[], object]) -> None:
        """A way back to be taken by `all`."""
        self._steps.append(step)

    def handle(self, handle: Any) -> None:
        """A hook of torch, which is removed."""
        self._steps.append(handle.remove)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Put `value` in the place of an attribute; the old one comes back unless somebody else
        replaced ours in the meantime."""
        # As it stands there: getattr would unwrap a staticmethod.
        had = name in vars(owner)
        before = vars(owner).get(name)

        def back() -> None:
            if vars(owner).get(name) is not value:
                return
            if had:
                setattr(owner, name, before)
            else:
                delattr(owner, name)

        setattr(owner, name, value)
        self._steps.append(back)

    def all(self) -> None:
        """Take everything back."""
        while self._steps:
            self._steps.pop()()
