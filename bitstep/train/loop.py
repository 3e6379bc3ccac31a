"""Pretraining, read top to bottom: open an attempt, step until done or asked to stop, end it.

    1. process 0 opens the run: a new one, or the newest checkpoint that verifies
    2. everything is built from the recipe, and the checkpoint put into it
    3. each step is trained, evaluated where due, recorded, and saved where due
    4. the end marker is written when every process has come here

An attempt without its end marker was killed, whatever its exit status says.
"""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from bitstep.checkpoint import prune, restore, save
from bitstep.contract.collect import collect
from bitstep.contract.manifest import Manifest
from bitstep.contract.placement import hosts
from bitstep.data.corpus import Corpus
from bitstep.faults import PAUSE, Fault
from bitstep.state.processes import Processes
from bitstep.state.together import alone
from bitstep.trace import TraceWriter
from bitstep.train.attempt import (
    End,
    Opening,
    attempt_folder,
    checkpoints_folder,
    end_attempt,
    locked,
    open_attempt,
)
from bitstep.train.build import Engine, build
from bitstep.train.data import read_corpus
from bitstep.train.evaluate import evaluate
from bitstep.train.layout import Layout
from bitstep.train.precision import software
from bitstep.train.recipe import flatten
from bitstep.train.resolve import CHANGES, SOURCE, Resolved
from bitstep.train.rows import start_rows, step_rows
from bitstep.train.step import StepResult, state_roots, train_step

log = logging.getLogger("bitstep")


@dataclass(frozen=True, slots=True)
class Progress:
    """One step, as it is shown to a person."""

    result: StepResult
    steps: int
    """Steps in the whole run."""
    seconds: float
    """Wall time of this step, recording and saving included."""
    evaluation: float | None
    """Held-out loss, at the steps that evaluate."""
    saved: Path | None
    """Checkpoint, at the steps that save."""


def pretrain(
    resolved: Resolved,
    run: Path,
    processes: Processes,
    *,
    command: Sequence[str],
    should_stop: Callable[[], bool],
    report: Callable[[Progress], None],
    fault: Fault | None = None,
    whole_sums: bool = False,
) -> End:
    """One attempt of a run in its directory, on every process at once. Raises BitstepError."""
    recipe = resolved.recipe
    local = processes.local_world or processes.world
    layout = Layout(recipe.layout.fan_ins, processes.world, processes.rank, local, whole_sums)
    corpus = read_corpus(recipe)
    engine = build(recipe, layout, processes, corpus, fault)
    with locked(run, processes, resolved.resumes):
        manifest = _manifest(resolved, engine, corpus, command, processes)
        opening = open_attempt(run, manifest, resolved.resumes, processes)
        if processes.rank == 0:
            _tell(opening)
        if opening.checkpoint is not None:
            omitted = None if fault is None else fault.of("restore-without")
            restore(opening.checkpoint, engine.state, processes, omit=omitted)
        attempt = attempt_folder(run, opening.attempt)
        with TraceWriter(attempt, processes.rank) as trace:
            end = _steps(engine, trace, attempt, should_stop, report)
        end_attempt(run, opening.attempt, end, processes)
    return end


def _tell(opening: Opening) -> None:
    for reason in opening.skipped:
        log.warning("skipped a checkpoint, and set it aside: %s", reason)
    if opening.checkpoint is not None:
        log.info("attempt %d goes on from %s", opening.attempt, opening.checkpoint)
    elif opening.attempt > 0:
        log.warning("attempt %d has no checkpoint: it begins at the first step", opening.attempt)


def _manifest(
    resolved: Resolved,
    engine: Engine,
    corpus: Corpus,
    command: Sequence[str],
    processes: Processes,
) -> Manifest:
    recipe, layout = resolved.recipe, engine.layout
    names = processes.exchange(socket.gethostname())
    manifest = collect(
        flatten(recipe),
        command=command,
        corpus_digest=corpus.digest,
        order_digest=engine.training_data.order_digest(),
        layout={
            "logical": {"fan_ins": recipe.layout.fan_ins, "threads": recipe.layout.threads},
            "physical": {
                "processes": layout.processes,
                "on_a_node": layout.local_processes,
                "placed": hosts(dict(enumerate(names))),
                "sums": "whole" if layout.whole_sums else "sharded",
            },
        },
        declared=resolved.declared,
        roots=[("model", engine.model)],
    )
    named = {SOURCE: resolved.source, CHANGES: list(resolved.changes)}
    named |= software(recipe.run.precision)
    if engine.fault is not None:
        named["program.fault"] = str(engine.fault)
    return replace(manifest, keys={**manifest.keys, **named})


def _steps(
    engine: Engine,
    trace: TraceWriter,
    attempt: Path,
    should_stop: Callable[[], bool],
    report: Callable[[Progress], None],
) -> End:
    step, steps = engine.state.values["step"]["step"], engine.recipe.run.steps
    roots, seq = state_roots(engine), count()
    trace.write(start_rows(step, roots, engine.layout, seq))
    trace.end_step(step, roots["state"])
    stop = False
    while step < steps and not stop:
        began = time.monotonic()
        _tell_recorder(engine, step + 1)
        result = train_step(engine)
        step, roots = result.step, result.roots
        evaluation = evaluate(engine) if _due(step, engine.recipe.run.eval_every) else None
        trace.write(step_rows(result, engine.layout, evaluation, seq))
        trace.end_step(step, roots["state"])
        stop = engine.processes.any(should_stop())
        saved = _save(engine, attempt) if stop or _save_due(engine, step) else None
        report(Progress(result, steps, time.monotonic() - began, evaluation, saved))
    return End("finished" if step >= steps else "stopped", step, roots["state"])


def _tell_recorder(engine: Engine, step: int) -> None:
    """A recorder would have to infer steps from writes to parameters, which a stray one is too."""
    if "bitstep.observe.recorder" not in sys.modules:
        return  # Nobody records, and hooks are not worth loading for that.
    from bitstep.observe import current

    if (recorder := current()) is not None:
        recorder.attach(engine.model).step(step)


def _save_due(engine: Engine, step: int) -> bool:
    every = engine.recipe.run.save_every
    return _due(step, every) or (every > 0 and step == engine.recipe.run.steps)


def _save(engine: Engine, attempt: Path) -> Path:
    settings, folder = engine.recipe.run, checkpoints_folder(attempt.parent)
    step = engine.state.values["step"]["step"]

    def reached(position: str) -> None:
        log.debug("step %d: checkpoint: %s", step, position)
        if engine.fault is not None and engine.fault.of("pause-at") == position:
            time.sleep(PAUSE)

    path = save(folder, step, engine.state, engine.processes, reached, attempt.name)
    alone(
        engine.processes,
        lambda: list(map(str, prune(folder, settings.keep_last, settings.keep_every))),
    )
    return path


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
