"""What a rule is: one setting that decides bits, the values it may have, and when it is read.

1. A rule names an environment variable or a setting of torch.
2. `accepts` are the values that it may have. What is set to another is refused, never changed.
3. `fill` is what it gets where nobody chose; None: there is no value that is right for everybody,
   so it stays as it is, and the manifest holds it (pin and record).
4. `read` are the moments that read it. What is set after the first of them comes too late.

>>> rule = Rule(name="A", kind="variable", library="MKL", accepts=("AVX2", "N"), fill=None,
...             why="", read=("import torch",), cost="", evidence="", mark="source only")
>>> [accepted(rule, value) for value in ("AVX2", "12", "-1", "")]
[True, True, False, False]
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal

from bitstep.errors import UsageError

Kind = Literal["variable", "torch"]
Library = Literal[
    "Python", "PyTorch", "OpenMP", "MKL", "oneDNN", "Inductor", "Triton", "cuBLAS",
    "cuDNN", "CUDA", "NCCL", "Transformer Engine", "Transformers", "Mamba", "causal-conv1d",
]  # fmt: skip
Moment = Literal[
    "interpreter start",
    "import torch",
    "import numpy",
    "import torch._inductor",
    "import triton",
    "import transformer_engine",
    "import mamba_ssm",
    "import causal_conv1d",
    "first graph",
    "CUDA in use",
    "process group",
]
Mark = Literal["measured", "source only", "public report"]

NUMBER: Final = "N"
"""Among what a rule accepts: a number of 32 bits in decimal digits; of threads, 1 or more."""
MOST_THREADS: Final = 1 << 16
"""More than any machine has: what is larger is a slip, and libraries ignore it or overflow."""
OFF: Final = ("0", "")
PIN: Final = "whatever it is, another run must have the same"
"""Why a rule without a fill is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One setting that decides bits."""

    name: str
    """Name of the variable, or the path of the setting as one would write it."""
    kind: Kind
    library: Library
    """Who reads it."""
    accepts: tuple[str, ...]
    """Patterns of fnmatch; N is any number. A setting of torch is compared as text."""
    fill: str | None
    """What it is set to where nobody chose; None: it is pinned and recorded, not chosen here."""
    default: tuple[str, ...] = ()
    """Values that a setting of torch has where nobody chose, although they are not accepted."""
    listed: bool = False
    """The value is a list with commas, each word of which must be accepted."""
    takes_threads: bool = False
    """The number of threads is its value, where one was asked for."""
    needed_with: str = ""
    """NAME=value of another variable with which it must be set."""
    why: str
    read: tuple[Moment, ...]
    """The first of these reads it."""
    cost: str
    """What holding it costs; empty: nothing that was seen."""
    evidence: str
    """A test here, or a public source."""
    mark: Mark

    def value(self, threads: int | None) -> str | None:
        """What it is set to where nobody chose, with that many threads asked for."""
        if self.takes_threads and threads is not None:
            return str(threads)
        return self.fill


def accepted(rule: Rule, value: str) -> bool:
    """Whether the rule accepts this value."""
    words = [value]
    if rule.listed:
        words = [word.strip() for word in value.split(",") if word.strip()] or [""]
    lowest, highest = (1, MOST_THREADS) if rule.takes_threads else (0, 2**32 - 1)

    def fits(word: str, pattern: str) -> bool:
        if pattern == NUMBER:
            return _is_number(word, lowest, highest)
        return fnmatchcase(word, pattern)

    return all(any(fits(word, pattern) for pattern in rule.accepts) for word in words)


def check_threads(threads: int | None) -> None:
    """Raise UsageError for a number of threads that no process can have."""
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise UsageError(f"{threads} threads: ask for 1 to {MOST_THREADS}")


def _is_number(word: str, lowest: int, highest: int) -> bool:
    is_short = word.isascii() and word.isdecimal() and len(word) <= len(str(highest))
    return is_short and lowest <= int(word) <= highest
