"""Attach to a live program and record what it does: `start`, `record`, or `attach` and `detach`.

1. `start` hooks the process; nothing is written before the first training step.
2. The hooks report to `events`, which makes steps; operations go straight to rows.
3. At the first training step the rank is known: the attempt is claimed, the manifest written.
4. `close` writes the end marker and takes every hook back.

    with bitstep.record("runs/a", level="op"):
        train()
"""

from __future__ import annotations

import atexit
import fnmatch
import functools
import os
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bitstep.observe import autograd, data, recompute
from bitstep.observe.control import Control
from bitstep.observe.engine import Engine
from bitstep.observe.events import MODULE, OP, PHASE, Events
from bitstep.observe.journal import Journal, rank_and_world
from bitstep.observe.modules import Modules
from bitstep.observe.names import Names
from bitstep.observe.operations import Operations
from bitstep.observe.optimizers import Optimizers
from bitstep.observe.options import LEVELS, Level, RecordOptions
from bitstep.observe.pipelines import Pipelines
from bitstep.observe.scope import Scope
from bitstep.observe.seen import Seen
from bitstep.observe.undo import Undo
from bitstep.trace.columns import Columns


class Recorder:
    """One recording of this process."""

    def __init__(self, options: RecordOptions) -> None:
        _all.add(self)
        self.options = options
        self._columns = Columns()
        self._scope = Scope(self._columns)
        self._journal = Journal(options, self._columns)
        self._names = Names()
        self._optimizers = Optimizers()
        self._seen = Seen(options.rehash)
        self._control = Control(options.directory, options.level)
        self._undo = Undo()
        self._wants = functools.cache(self._matches)
        self._events = Events(
            self._columns, self._scope, self._journal, self._names, self._optimizers, self._seen,
            self,
        )  # fmt: skip
        self._modules = Modules(self._scope, self._names, self._events, self._wants)
        only = None if options.modules is None else self._wants
        self._operations = Operations(self._columns, self._scope, self._seen, self._events, only)
        self._pipelines = Pipelines(
            self._events.asleep_for, self._events.in_chunk, self._names.stage, self._scope.is_ours
        )
        self._operations.microbatch_of = self._pipelines.microbatch_of

    # -- attach and detach -------------------------------------------------------------------

    def attach(self, model: nn.Module | None = None, optimizer: Any = None) -> Recorder:
        """Hook this process. `model` and `optimizer` name what already exists."""
        if model is not None:
            self._names.root(model)
        if optimizer is not None:
            self._optimizers.add(optimizer)
        if self._attached:
            return self
        self._attached = True
        self._scope.adopt_thread()
        self._modules.attach(self._undo)
        self._optimizers.attach(self._events, self._scope, self._undo)
        data.attach(self._events, self._scope, self._undo)
        for why in (autograd.problem(), recompute.watch(self._scope, self._undo)):
            if why is not None:
                self._journal.gap(why)
        self._operations.pending.watch(self._undo, self._journal.gap)
        self._operations.regions.watch(self._undo, self._journal.gap)
        self._pipelines.watch(self._undo, self._journal.gap)
        self._events.begin()
        atexit.register(self.close)
        return self

    _attached = False

    def detach(self) -> None:
        """Take every hook back. The trace goes on with `attach`, or ends with `close`."""
        if self._attached:
            self._attached = False
            self._events.pause()
            self._leave()
            self._undo.all()

    def close(self) -> None:
        """Write what the last step has and the end marker, and detach."""
        self._events.finish()
        self._events.asleep = True
        self._operations.pending.drop()
        self._journal.close()
        self.detach()
        atexit.unregister(self.close)

    def __enter__(self) -> Recorder:
        return self.attach()

    def __exit__(self, *error: object) -> None:
        self.close()

    def forget(self) -> None:
        """In a forked child: what the parent wrote is the parent's."""
        if self._journal.is_open:
            self._events.asleep = True
            self._journal.abandon()
        else:
            self._columns.clear()
            self._scope.adopt_thread()

    # -- what a program may say itself ---------------------------------------------------------

    def step(self, step: int) -> None:
        """Step number `step`, counted over all attempts, begins now."""
        self._events.begin_step(step)

    def phase(self, phase: str) -> AbstractContextManager[None]:
        """Everything inside belongs to `phase`."""
        return self._scope.in_phase(phase)

    def metric(self, name: str, value: Any) -> None:
        """A value of this step, kept by its bits: a number or a tensor."""
        self._events.metric(name, value, self._scope.phase)

    def engine(self) -> Engine:
        """What the adapter of an engine may use."""
        return Engine(self._events, self._scope, self._names, self._undo, self._journal.gap)

    # -- what events ask -----------------------------------------------------------------------

    def level_of(self, step: int) -> int:
        level: Level = self._control.level(step)
        window = self.options.steps
        if window is not None and not window[0] <= step < window[1]:
            level = "step"
        return LEVELS.index(level)

    def opened(self) -> None:
        """The first training step: the rank is known now."""
        rank, world = rank_and_world()
        if self.options.ranks is not None and rank not in self.options.ranks:
            self._events.asleep = True
            self._journal.abandon()
            return
        self._scope.rank = rank
        self._columns.set_rank(rank)
        self._journal.open(rank, world)
        self._events.number("world", world, "start")
        if rank == 0:
            self._write_manifest(world)

    def _write_manifest(self, world: int) -> None:
        from bitstep.observe.manifest import write_manifest

        try:
            events = self._events
            roots = list(self._names.roots())
            write_manifest(self.options.directory, world, events.layout, events.findings, roots)
        except Exception as error:
            self._journal.gap(f"no manifest: {error}")

    def step_ends(self, step: int) -> None:
        phase = "optimizer" if step else "start"
        self._events.number("count.compiled", self._operations.regions.count, phase)
        self._operations.regions.count = 0
        self._events.number("count.ops", self._operations.count, phase)
        self._events.number("count.skipped", self._operations.rows.skipped, phase)
        self._events.number("count.threads", self._modules.elsewhere, phase)
        self._operations.count = self._operations.rows.skipped = self._modules.elsewhere = 0

    def backward_ended(self) -> None:
        """What DDP reduced in backward is there now."""
        self._operations.pending.backward_ended()

    def leveled(self, level: int) -> None:
        """Have the dispatch mode on where the level of a step needs it."""
        if level >= MODULE:
            self._modules.wake()
        operations = self._operations
        operations.active = level >= OP
        self._seen.sees_all = operations.active and self.options.modules is None
        operations.collectives = level >= PHASE and rank_and_world()[1] > 1
        if (operations.active or operations.collectives) and not self._entered:
            if torch._C._len_torch_dispatch_stack() == 0:
                self._operations.__enter__()  # type: ignore[no-untyped-call]
                self._entered = True
            else:
                self._journal.gap("operations are not recorded: another dispatch mode is on")

    _entered = False

    def _leave(self) -> None:
        self._operations.active = self._operations.collectives = False
        top = torch._C._len_torch_dispatch_stack() - 1
        if self._entered and torch._C._get_dispatch_stack_at(top) is self._operations:
            self._operations.__exit__(None, None, None)
            self._entered = False

    def _matches(self, path: str) -> bool:
        patterns = self.options.modules
        return patterns is None or any(fnmatch.fnmatchcase(path, p) for p in patterns)


_current: Recorder | None = None
_all: weakref.WeakSet[Recorder] = weakref.WeakSet()


def start(options: RecordOptions) -> Recorder:
    """Hook this process; the recorder that it already has, if it has one."""
    global _current
    if _current is None or not _current._attached:
        _current = Recorder(options).attach()
    return _current


def current() -> Recorder | None:
    """The recorder of this process, where it is recorded: for a program that knows its steps."""
    return _current if _current is not None and _current._attached else None


@contextmanager
def record(directory: str | Path, **options: Any) -> Iterator[Recorder]:
    """Record what happens inside, of this process, into a new attempt of a run directory.

    `options` are those of RecordOptions.parse: level, steps, ranks, modules, budget, rehash,
    strict.
    """
    asked = RecordOptions.parse(directory, **options)
    if (recorder := current()) is not None:
        # The whole process is recorded already, and goes on being so.
        yield recorder
        return
    recorder = start(asked)
    try:
        yield recorder
    finally:
        recorder.close()


def after_fork() -> None:
    """In a forked child."""
    for recorder in list(_all):
        recorder.forget()


os.register_at_fork(after_in_child=after_fork)
