"""Prove the three guarantees of a recipe, with controls that must be caught.

1. `_plan` checks all that can be checked before anything runs.
2. `run_arms` runs every arm in fresh processes.
3. `judge` compares the arms with one another, and says what was found.
4. The certificate is written.

Refuted is an answer; unverified is the one that is given when an arm or a control failed to
answer, and it is never a pass.

>>> prove("nano", steps=20, processes=(1, 2), folder=Path("proof")).verdict.title  # doctest: +SKIP
'proven'
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bitstep.errors import RunError, UsageError
from bitstep.faults import parse_fault
from bitstep.investigate.arms import Plan, Said, run_arms
from bitstep.investigate.certificate import Certificate
from bitstep.investigate.judge import judge
from bitstep.train.data import read_corpus
from bitstep.train.layout import Layout, boundaries
from bitstep.train.recipe import Recipe, load

SHORTEST = 8
"""Fewest steps of a proof: the resume arm needs room to save, to die and to go on."""


def prove(
    recipe: str,
    *,
    processes: Sequence[int] = (1, 2, 4),
    steps: int = 24,
    folder: Path,
    changes: Sequence[str] = (),
    fault: str | None = None,
    said: Said = lambda report: None,
) -> Certificate:
    """Run the arms in `folder`, judge them, and leave certificate.json there.

    `said` hears of each arm as it ends. Raises UsageError, RecipeError, LayoutError or DataError
    before anything is run, and RunError if the folder is not empty or the resume arm could not be
    killed at its moment. Whatever is raised, no arm is left running.
    """
    plan, loaded = _plan(recipe, processes, steps, folder, changes, fault)
    folder.mkdir(parents=True, exist_ok=True)
    reports = run_arms(plan, said)
    certificate = judge(plan, loaded, reports)
    certificate.write(folder)
    return certificate


def _plan(
    recipe: str,
    processes: Sequence[int],
    steps: int,
    folder: Path,
    changes: Sequence[str],
    fault: str | None,
) -> tuple[Plan, Recipe]:
    loaded = load(recipe, [*changes, f"run.steps={steps}"])
    if steps < SHORTEST:
        raise UsageError(f"--steps {steps}: a proof takes at least {SHORTEST} steps")
    for count in processes:
        Layout(loaded.layout.fan_ins, count, process=0, local_processes=count)
    if fault is not None:
        parse_fault(fault)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} is not empty: choose another directory with -o")
    _check_corpus(loaded)
    # FSDP2's own reduction has no whole sums.
    tried = () if fault == "stock-reduction" else processes[1:]
    whole = boundaries(loaded.layout.fan_ins, whole_sums=True)
    return (
        Plan(
            recipe=recipe,
            changes=tuple(changes),
            steps=steps,
            processes=tuple(dict.fromkeys(processes)),
            threads=loaded.layout.threads,
            seed=loaded.run.seed,
            whole_sums=next((count for count in tried if count in whole), None),
            folder=folder,
            fault=fault,
        ),
        loaded,
    )


def _check_corpus(recipe: Recipe) -> None:
    """Read it once here, so that no arm is the first to say that it cannot be read."""
    corpus = read_corpus(recipe)
    corpus.train.sequences(recipe.data.sequence, recipe.lookahead)
    if recipe.run.eval_every:
        corpus.held_out.sequences(recipe.data.sequence, recipe.lookahead)
