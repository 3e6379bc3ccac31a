"""The generators of a process: their states, where they started, who put them somewhere.

1. `Draws.attach` sets where torch starts from the order's entropy, and listens to every function
   that seeds or restores a generator.
2. `states` reads the process-wide ones; `state_of` and `advance` work on any generator.

>>> is_generator(torch.Generator())
True
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from bitstep.observe.examine.leaves import Leaf, leaf_of, number, whole_numbers

_SEEDING: Final = (
    ("torch", ("manual_seed", "seed", "set_rng_state")),
    ("torch.random", ("manual_seed", "seed", "set_rng_state")),
    ("torch.cuda", ("manual_seed", "manual_seed_all", "set_rng_state", "set_rng_state_all")),
    ("random", ("seed", "setstate")),
    ("numpy.random", ("seed", "set_state")),
)


def is_generator(value: Any) -> bool:
    """Whether random numbers are drawn from it: of torch, NumPy or Python."""
    kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    return isinstance(value, kinds)


def state_of(path: str, generator: Any) -> Leaf:
    """The state of a generator, as a leaf that a checkpoint would hold."""
    if isinstance(generator, torch.Generator):
        found = leaf_of(path, generator.get_state())
        assert found is not None
        return found
    if isinstance(generator, random.Random):
        return whole_numbers(path, list(generator.getstate()[1]))
    if isinstance(generator, np.random.RandomState):
        return _of_numpy(path, generator.get_state(legacy=True))
    state = generator.bit_generator.state["state"]
    if isinstance(state.get("state"), int):
        return number(path, state["state"])
    words = [int(word) for key in sorted(state) for word in np.atleast_1d(state[key])]
    return whole_numbers(path, words)


def _of_numpy(path: str, state: Any) -> Leaf:
    keys = whole_numbers(path, state[1].tolist())
    # The words stay for 624 draws; what moves is the position in them.
    return keys._replace(said=f"{keys.said}, position {state[2]}")


def advance(generator: Any) -> None:
    """Draw one number."""
    if isinstance(generator, torch.Generator):
        torch.rand(1, generator=generator, device=generator.device)
    else:
        generator.random(1) if not isinstance(generator, random.Random) else generator.random()


def processwide() -> dict[str, Any]:
    """The generators that a process has without having made them."""
    found: dict[str, Any] = {"torch": torch.default_generator, "python": random._inst}
    if "numpy.random" in sys.modules:
        found["numpy"] = np.random.mtrand._rand
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found |= {f"cuda:{n}": g for n, g in enumerate(torch.cuda.default_generators)}
    return found


def states() -> dict[str, str]:
    """The state of each process-wide generator, exactly: its words and its position in them."""
    return {name: f"{exact(generator)}" for name, generator in processwide().items()}


def exact(generator: Any) -> str:
    """A text that is the same for equal states only."""
    leaf = state_of("", generator)
    return f"{leaf.digest} {leaf.said}"


class Draws:
    """Listens to seeding. `events` are in the order in which they happened."""

    def __init__(self, entropy: int, where: Callable[[], str]) -> None:
        self.events: list[dict[str, str]] = []
        self._entropy = entropy
        self._where = where

    def attach(self) -> None:
        """Set where torch starts, and listen."""
        torch.default_generator.manual_seed(self._entropy)  # else from the machine's
        for module, names in _SEEDING:
            for name in names:
                self._listen(sys.modules.get(module), module, name)

    def note(self, call: str, argument: str, drew: str = "") -> None:
        """Something that bears on where a generator is."""
        self.events.append({"call": call, "argument": argument, "where": self._where()})
        if drew:
            self.events[-1]["drew"] = drew

    def _listen(self, owner: Any, module: str, name: str) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else next(iter(kwargs.values()), None)
            said = repr(given) if isinstance(given, int | float | type(None)) else "a state"
            self.note(
                f"{module.removesuffix('.random') if module[0] == 't' else module}.{name}", said
            )
            return original(*args, **kwargs)

        setattr(owner, name, call)
