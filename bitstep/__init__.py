"""Pretraining with the same bits: repeat it, resume it, spread it, prove it.

The names below are loaded when they are first asked for; importing bitstep imports no torch.
`bitstep.record` and `bitstep.deterministic()` are those that need it.
Rooms are imported by their own names: `from bitstep.fingerprint import fingerprint`.

>>> import bitstep
>>> issubclass(bitstep.RunError, bitstep.BitstepError)
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from bitstep.version import __version__

if TYPE_CHECKING:
    from bitstep.contract.enforce import deterministic
    from bitstep.errors import BitstepError, RunError
    from bitstep.observe import record
    from bitstep.records import Fingerprint, Outcome, Record, Site, Verdict
    from bitstep.trace import TraceWriter, read_trace

__all__ = [
    "BitstepError",
    "Fingerprint",
    "Outcome",
    "Record",
    "RunError",
    "Site",
    "TraceWriter",
    "Verdict",
    "__version__",
    "deterministic",
    "read_trace",
    "record",
]

_ROOMS = {
    "BitstepError": "errors",
    "Fingerprint": "records",
    "Outcome": "records",
    "Record": "records",
    "RunError": "errors",
    "Site": "records",
    "TraceWriter": "trace",
    "Verdict": "records",
    "deterministic": "contract.enforce",
    "read_trace": "trace",
    "record": "observe",
}


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"module 'bitstep' has no attribute {name!r}")
    value: object = getattr(import_module(f"bitstep.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
