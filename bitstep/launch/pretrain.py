"""`bitstep pretrain`: one process here, several by torchrun's agent, or one worker of torchrun.

1. The recipe is read and refused or not, and the environment set: torch comes after it.
2. A worker, or the only process, trains. Several processes are started and waited for.
3. The end marker of the attempt decides how it ended, not the exit status of a worker: gloo
   processes sometimes abort after all work is done.

    finished 0 · stopped by a signal 75 · by Ctrl-C 130 · anything else is an error

>>> Order(recipe="nano", run=Path("runs/nano"), processes=2, resume=True).words()[2:]
['pretrain', 'nano', '-o', 'runs/nano', '--processes', '2', '--resume']
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bitstep.contract.enforce import drift, told
from bitstep.errors import ContractError, RunError, UsageError
from bitstep.faults import parse_fault
from bitstep.launch import environment, versions
from bitstep.launch.signals import StopRequest, catch_stop
from bitstep.launch.torchrun import (
    Failure,
    is_supervised,
    is_worker,
    run_workers,
    world_of_worker,
)

if TYPE_CHECKING:
    from bitstep.state.processes import Processes
    from bitstep.train.loop import Progress
    from bitstep.train.recipe import Recipe
    from bitstep.train.resolve import Resolved

logger = logging.getLogger("bitstep")


@dataclass(frozen=True, slots=True)
class Order:
    """What `bitstep pretrain` was asked for."""

    recipe: str
    run: Path
    processes: int = 1
    changes: tuple[str, ...] = ()
    """"section.key=value", in order."""
    resume: bool = False
    fault: str = ""
    whole_sums: bool = False
    """Each process adds up its own microbatches first, see `train.layout`."""
    habits: tuple[str, ...] = ()
    """-v and -q, for the workers."""

    def words(self) -> list[str]:
        """The same order as words for the interpreter."""
        words = ["-m", "bitstep", "pretrain", self.recipe, "-o", str(self.run)]
        words += ["--processes", str(self.processes)]
        for change in self.changes:
            words += ["--set", change]
        if self.fault:
            words += ["--fault", self.fault]
        if self.whole_sums:
            words += ["--sums", "whole"]
        return [*words, *["--resume"] * self.resume, *self.habits]


@dataclass(frozen=True, slots=True)
class Ended:
    """How the attempt ended."""

    status: str
    """finished or stopped."""
    step: int
    root: str
    """State root, 16 hexadecimal digits."""
    exit: int


def pretrain_command(
    order: Order,
    show: Callable[[Progress], None],
    tell: Callable[[Ended], None],
    on_signal: Callable[[signal.Signals], None] | None = None,
) -> int:
    """Carry out the order; returns the exit status. Raises BitstepError.

    Args:
        order: what to do.
        show: called after each step, on process 0.
        tell: called once, at the end, in the one process that a person watches.
        on_signal: called from the handler of a signal that asks to stop.
    """
    from bitstep.train.resolve import resolve

    resolved = resolve(order.recipe, order.changes, order.run, order.resume)
    environment.apply(resolved.recipe.layout.threads)
    if not is_worker():
        os.environ.update(versions.of_engine())
    with catch_stop(on_signal) as stop:
        if is_worker():
            return _work(order, resolved, stop, show, tell)
        if order.processes > 1:
            ended = _supervise(order, resolved.recipe, stop)
        else:
            ended, _ = _train(order, resolved, stop, show)
    tell(ended)
    return ended.exit


def _train(
    order: Order, resolved: Resolved, stop: StopRequest, show: Callable[[Progress], None]
) -> tuple[Ended, Processes]:
    fault = parse_fault(order.fault) if order.fault else None
    from bitstep.launch.worker import join, settle
    from bitstep.train.loop import pretrain

    settle(resolved.recipe.layout.threads)
    processes = join()
    finished = pretrain(
        resolved,
        order.run,
        processes,
        command=order.words(),
        should_stop=stop,
        report=show if processes.rank == 0 else _ignore,
        fault=fault,
        whole_sums=order.whole_sums,
    )
    if drifted := drift():
        raise ContractError(told(drifted))
    status = 0 if finished.status == "finished" else stop.exit
    return Ended(finished.status, finished.step, f"{finished.root:016x}", status), processes


def _ignore(progress: Progress) -> None:
    """Only process 0 shows its steps."""


def _work(
    order: Order,
    resolved: Resolved,
    stop: StopRequest,
    show: Callable[[Progress], None],
    tell: Callable[[Ended], None],
) -> int:
    world = world_of_worker()
    if order.processes not in (1, world):
        raise UsageError(
            f"--processes {order.processes} under a torchrun of {world}: leave --processes out"
        )
    ended, processes = _train(order, resolved, stop, show)
    if processes.rank == 0 and not is_supervised():
        tell(ended)
    from bitstep.launch.worker import wait_for_all

    wait_for_all(processes)
    return ended.exit


def _supervise(order: Order, recipe: Recipe, stop: StopRequest) -> Ended:
    from bitstep.train.layout import Layout

    # Refused here, in one line, rather than by every worker.
    Layout(recipe.layout.fan_ins, order.processes, 0, order.processes)
    before = set(_attempts(order.run))
    failures = run_workers(order.words(), order.processes, stop)
    # A worker that refused never trained: what ended meanwhile is the attempt of another launcher.
    refused = any(failure.is_user_error for failure in failures)
    ended = None if refused else _end(order.run, before, stop)
    if ended is None:
        raise RunError(_cause(failures, order))
    for failure in failures:
        if failure.exit < 0 and failure.signal_name != "SIGTERM":
            logger.info("process %d: %s after its work", failure.rank, failure.signal_name)
    return ended


def _attempts(run: Path) -> list[Path]:
    return sorted(run.glob("attempt-*"))


def _end(run: Path, before: set[Path], stop: StopRequest) -> Ended | None:
    # An attempt that died before it made its directory must not be judged by the one before it.
    new = [attempt for attempt in _attempts(run) if attempt not in before]
    if not new or not (new[-1] / "end.json").is_file():
        return None
    end = json.loads((new[-1] / "end.json").read_text())
    status = 0 if end["status"] == "finished" else stop.exit
    return Ended(end["status"], end["step"], end["root"], status)


def _cause(failures: list[Failure], order: Order) -> str:
    if not failures:
        return f"{order.run}: the processes ended without an end marker; see their output"
    first = failures[0]
    if first.is_user_error:
        return first.message
    what = f"process {first.rank} of {order.processes}"
    if first.signal_name:
        return f"{what} was killed by {first.signal_name}; go on with --resume"
    return f"{what} failed with status {first.exit}: {first.message or 'see its output'}"
