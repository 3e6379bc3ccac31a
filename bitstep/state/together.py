"""All processes succeed or all fail, with one message.

A process that raised alone would leave the others waiting in their next collective. So each piece
of work ends with an exchange of what went wrong, and every process raises the same error.

>>> from bitstep.state.processes import Processes
>>> together(Processes(rank=0, world=1), lambda: 7)
[7]
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bitstep import errors
from bitstep.errors import BitstepError, RunError

if TYPE_CHECKING:
    from bitstep.state.processes import Processes

Json = Any

log = logging.getLogger("bitstep")


def together(processes: Processes, work: Callable[[], Json]) -> list[Json]:
    """Do work on every process; the results of all on process 0, an empty list on the others.

    Raises on every process if it failed on any, what the first process raised that failed: its
    BitstepError, a RunError for the system's OSError, or a RuntimeError for a mistake of ours.
    """
    everyone = processes.gather(_outcome(processes.rank, work))
    failures = [error for _, error in everyone or () if error]
    _raise(processes.broadcast(failures[0] if failures else None))
    return [result for result, _ in everyone or ()]


def alone(processes: Processes, work: Callable[[], Json]) -> Json:
    """Do work on process 0 only; its result on every process. Raises like `together`."""
    mine = _outcome(0, work) if processes.rank == 0 else None
    result, error = processes.broadcast(mine)
    _raise(error)
    return result


def _outcome(rank: int, work: Callable[[], Json]) -> list[Json]:
    """The result and the error of work, one of them None; JSON, since it travels."""
    try:
        return [work(), None]
    except BitstepError as error:
        return [None, [type(error).__name__, str(error)]]
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return [None, [RunError.__name__, f"{what}; correct that, then start again"]]
    except Exception as error:  # whatever it is, the others must hear of it
        log.debug("process %d failed", rank, exc_info=True)
        return [None, ["", f"process {rank}: {type(error).__name__}: {error}"]]


def _raise(error: list[str] | None) -> None:
    if error is not None:
        kind, message = error
        raise getattr(errors, kind)(message) if kind else RuntimeError(message)
