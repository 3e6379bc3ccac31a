"""Every error that bitstep raises on purpose.

    BitstepError
    ├── UsageError           a word on the command line that cannot be meant
    ├── RecipeError          an unknown key, or a value that the recipe does not allow
    ├── LayoutError          a number of processes that the fan-ins do not allow
    ├── FingerprintError     a tensor without bits to read, or parts that do not make a whole
    ├── TraceError           a trace that is damaged, cut, or written in another format
    ├── ContractError        two attempts differ in something that must match
    ├── CheckpointError      a checkpoint that cannot be trusted, or cannot be written
    ├── DataError            a corpus that is empty, unreadable, or not the one that was recorded
    └── RunError             a run directory that is taken, missing or full; a process that died

A message is one line: what happened, with which value, and what to do. The command line prints it
after "bitstep: " and exits with 2. Our own mistakes are assertions, never one of these.
"""


class BitstepError(Exception):
    """The root of the tree: catch this to catch all of them."""


class UsageError(BitstepError):
    """A word on the command line that cannot be meant."""


class RecipeError(BitstepError):
    """An unknown recipe key, or a value that the recipe does not allow."""


class LayoutError(BitstepError):
    """A number of processes that the fan-ins of the recipe do not allow."""


class FingerprintError(BitstepError):
    """A tensor without bits to read, or parts that do not make a whole."""


class TraceError(BitstepError):
    """A trace that is damaged, cut, or written in another format."""


class ContractError(BitstepError):
    """Two attempts differ in something that must match."""


class CheckpointError(BitstepError):
    """A checkpoint that cannot be trusted, or cannot be written."""


class DataError(BitstepError):
    """A corpus that is empty, unreadable, or not the one that was recorded."""


class RunError(BitstepError):
    """A run directory that is taken, missing or full, or a process that died."""


def printable(text: str) -> str:
    """`text` with control characters, line ends and the like escaped: words from a file."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
