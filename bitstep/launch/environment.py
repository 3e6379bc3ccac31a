"""What must be in the environment before torch is imported, because it is read only once.

1. `environment(threads)` is the table, as a dict.
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

from bitstep.errors import RunError

logger = logging.getLogger("bitstep")


def environment(threads: int) -> dict[str, str]:
    """The variables that numerics need, for a recipe with that many threads per process."""
    return {
        # Full reductions on CPU have other bits with another thread count.
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # Else MKL and OpenMP may use fewer threads than asked for, by cores and load.
        "MKL_DYNAMIC": "FALSE",
        "OMP_DYNAMIC": "FALSE",
        # Without a fixed workspace cuBLAS picks algorithms by free memory. Read with the first
        # handle. This one and the next only matter on a GPU, where none of this has been run.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        # NCCL else picks its algorithm, and with it the order of a sum, by topology.
        "NCCL_ALGO": "Ring",
    }


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
