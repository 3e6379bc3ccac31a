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
"""Among what a rule accepts: any number, in decimal digits."""
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
    return all(any(_fits(word, pattern) for pattern in rule.accepts) for word in words)


def _fits(word: str, pattern: str) -> bool:
    if pattern == NUMBER:
        return word.isascii() and word.isdecimal()
    return fnmatchcase(word, pattern)
