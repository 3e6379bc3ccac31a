"""Put a call of ours around a function of Megatron's.

1. The original is called with what it was called with, and its result is given back.
2. In another thread than the one that is recorded, and while the recorder works, only it is called.
3. A function that this version lacks becomes a sentence for the gaps; the rest is followed.

>>> around(engine, schedules, "forward_step", call)  # doctest: +SKIP
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from bitstep.observe.engine import Engine

Call = Callable[..., Any]


def around(engine: Engine, owner: Any, name: str, call: Call) -> None:
    """Replace `owner.name` by `call(original, *args, **kwargs)`."""
    # As it stands there: a class may only inherit it, and a staticmethod is no method.
    found = vars(owner).get(name)
    if found is None:
        where = getattr(owner, "__qualname__", getattr(owner, "__name__", ""))
        engine.gap(f"megatron: {where}.{name} is not followed: this version has none")
        return
    is_static = isinstance(found, staticmethod)
    original = found.__func__ if is_static else found

    @functools.wraps(original)
    def followed(*args: Any, **kwargs: Any) -> Any:
        if engine.events.asleep or not engine.scope.is_ours():
            return original(*args, **kwargs)
        return call(original, *args, **kwargs)

    engine.undo.replace(owner, name, staticmethod(followed) if is_static else followed)


def phases(engine: Engine, owner: Any, names: Iterable[str], phase: str) -> None:
    """What these functions do belongs to `phase`."""

    def call(original: Call, *args: Any, **kwargs: Any) -> Any:
        with engine.scope.in_phase(phase):
            return original(*args, **kwargs)

    for name in names:
        around(engine, owner, name, call)
