"""Which recipe an attempt trains: the one that was named, or that of the run it goes on with.

`--resume` in a directory without a run begins one, so that one command line serves the first start
of a job and every requeue. A run keeps its --set changes in its manifest, so that `--resume` needs
none of them again. A change on resume that alters a value is a branch: declared, and recorded as
such. Imports no torch: the threads of the recipe must be in the environment before torch is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bitstep.contract.manifest import read_manifest
from bitstep.errors import ContractError
from bitstep.train.recipe import Recipe, flatten, load

LOCK = "lock"
"""File that is locked while an attempt lives."""
SOURCE, CHANGES = "program.recipe", "program.changes"
"""Manifest keys: the recipe as it was named, and every --set so far."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A recipe and how it came about."""

    recipe: Recipe
    source: str
    """Name or path, as it was given."""
    changes: tuple[str, ...]
    """Every --set, of this attempt and of those before it."""
    declared: tuple[str, ...]
    """Recipe keys whose value this attempt changes against the one before."""
    resumes: bool
    """Whether there is a run to go on with."""


def resolve(source: str, changes: Sequence[str], run: Path, resume: bool) -> Resolved:
    """The recipe of the next attempt. Raises RecipeError, ContractError."""
    if not resume or is_free(run):
        return Resolved(load(source, changes), source, tuple(changes), (), resumes=False)
    last = read_manifest(run)[-1].manifest.keys
    named = last.get(SOURCE)
    if named != source:
        raise ContractError(f"{run} is a run of recipe {named!r}, not {source!r}; name that one")
    before = tuple(str(change) for change in last.get(CHANGES, ()))
    recipe = load(source, [*before, *changes])
    set_now = {change.partition("=")[0] for change in changes}
    declared = [
        name
        for name, value in flatten(recipe).items()
        if name in set_now and last.get(f"recipe.{name}") != value
    ]
    kept = tuple(c for c in before if c.partition("=")[0] not in set_now)
    return Resolved(recipe, source, (*kept, *changes), tuple(declared), resumes=True)


def is_free(run: Path) -> bool:
    """Whether a new run can begin in this directory: it is not there, or holds nothing.

    An attempt that died before its manifest was written leaves a lock and no run.
    """
    return not run.exists() or (run.is_dir() and {f.name for f in run.iterdir()} <= {LOCK})
