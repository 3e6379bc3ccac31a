"""Where a random draw within a step comes from: a key of its own, and no generator of the process.

1. A `Draw` names the place: the seed of the recipe, a counter (the step), the logical rank.
2. A module asks it for a generator by its own name; the key of all four seeds that generator.
3. The generator is used for one mask and dropped. Nothing is left to save, and recomputing a
   block, or computing it in another process, draws the same numbers.

>>> import torch
>>> draw = Draw(seed=1, counter=20, rank=3)
>>> first = torch.rand(2, generator=draw.generator("blocks.0.dropout", "cpu"))
>>> again = torch.rand(2, generator=draw.generator("blocks.0.dropout", "cpu"))
>>> torch.equal(first, again)
True
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bitstep.state.keys import key

_SEED_BITS = (1 << 63) - 1


@dataclass(frozen=True)
class Draw:
    """One logical rank's place in the run, from which the random draws of its modules follow."""

    seed: int
    """Seed of the recipe."""
    counter: int
    """What advances from one forward to the next: the absolute step."""
    rank: int
    """Logical rank, never the process."""

    def generator(self, name: str, device: torch.device | str) -> torch.Generator:
        """Give a fresh generator on `device` for the module called `name`.

        On CPU torch seeds its Mersenne twister with the low 32 bits only (measured, 2.13): two
        names in 2^32 share a stream there. For dropout masks that is harmless.
        """
        generator = torch.Generator(device=device)
        seed = key("draw", self.seed, self.counter, self.rank, name)
        return generator.manual_seed(seed & _SEED_BITS)
