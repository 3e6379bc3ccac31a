"""What must be in the environment before torch is imported, because it is read only once.

1. `environment(threads)` is what the rules of the contract say about the libraries that the engine
   uses, as a dict.
2. `apply(threads)` puts it into this process, and so into every process that it starts. When torch
   is already there and a value would change, that is an error: the value would not be read.

PYTHONHASHSEED is not in it: an interpreter reads it before any of our code runs. Nothing in the
engine depends on the order of a set or on hash(); keys are drawn with blake2b.

>>> environment(threads=1)["OMP_NUM_THREADS"]
'1'
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

from bitstep.contract.rule import Library
from bitstep.contract.rules import VARIABLES
from bitstep.errors import RunError

logger = logging.getLogger("bitstep")


LIBRARIES: Final[tuple[Library, ...]] = ("OpenMP", "MKL", "cuBLAS", "NCCL")
"""Whose variables the engine needs. It compiles nothing, and has no kernel of another library."""


def environment(threads: int) -> dict[str, str]:
    """The variables that numerics need, for a recipe with that many threads per process."""
    values = {rule.name: rule.value(threads) for rule in VARIABLES if rule.library in LIBRARIES}
    return {name: value for name, value in values.items() if value is not None}


def apply(threads: int) -> None:
    """Set the variables in this process. Raises RunError if torch was imported without them."""
    wanted = environment(threads)
    changed = {name: value for name, value in wanted.items() if os.environ.get(name) != value}
    if changed and "torch" in sys.modules:
        listed = " ".join(f"{name}={value}" for name, value in sorted(changed.items()))
        raise RunError(f"torch was imported before the environment was set: start with {listed}")
    for name, value in changed.items():
        if name in os.environ:
            logger.info("%s was %s; the recipe needs %s", name, os.environ[name], value)
    os.environ.update(changed)
