"""What a row of the catalog is.

>>> Row(op="aten.dot", device="cpu", varies="thread count", mechanism="split reduction",
...     setting=THREADS, evidence="the shipped survey", mark="measured").raises
False
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Device = Literal["cpu", "cuda", "any"]
Varies = Literal[
    "run to run", "thread count", "alignment", "shape", "instruction set", "never seen to"
]
"""From the worst to the best: what another execution must differ in to give other bits."""
Condition = Literal[
    "more than one thread",
    "duplicate indices",
    "accumulate",
    "floating point",
    "a few rows",
    "not whole vectors",
    "not aligned",
]
Mechanism = Literal[
    "atomics",
    "race",
    "split reduction",
    "vector tail",
    "kernel choice",
    "kernel per instruction set",
    "autotune",
    "uninitialized memory",
    "algorithm of a library",
    "not known",
    "",
]
Mark = Literal["measured", "source only", "public report"]

FLAG: Final = "torch.use_deterministic_algorithms(True)"
THREADS: Final = "the same number of threads in all runs: OMP_NUM_THREADS, torch.set_num_threads"
ONE_KERNEL: Final = "MKL_CBWR=AVX2 before the start"
CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG=:4096:8 before the first handle"
MACHINE: Final = (
    "the same CPU, or the same ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA and MKL_CBWR on all, which "
    "is COMPATIBLE where some CPUs are not Intel's"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way in which the bits of an operation may vary, or that they never did."""

    op: str
    """Name of its packet as in a trace, without the overload: "aten.index_put_"; may be a pattern
    of fnmatch."""
    device: Device
    varies: Varies
    when: str = ""
    """The case, in words; "": always."""
    only: tuple[Condition, ...] = ()
    """All of these must hold; (): always."""
    mechanism: Mechanism
    setting: str = ""
    """What makes it repeat: FLAG, THREADS, ..., or other words; "": nothing that is known."""
    raises: bool = False
    """torch.use_deterministic_algorithms(True) refuses it."""
    alternative: str = ""
    """What to call instead; "": nothing that is known."""
    evidence: str
    mark: Mark
    cases: tuple[str, ...] = ()
    """Of the shipped survey, those that show it."""
