"""Which recipe an attempt trains: the one that was named, or that of the run it goes on with.

A run keeps its --set changes in its manifest, so that `--resume` needs none of them again. A
change on resume that alters a value is a branch: declared, and recorded as such. Imports no torch,
because the threads of the recipe must be in the environment before torch is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bitstep.contract.manifest import read_manifest
from bitstep.errors import ContractError, RunError
from bitstep.train.recipe import Recipe, flatten, load

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


def resolve(source: str, changes: Sequence[str], run: Path, resume: bool) -> Resolved:
    """The recipe of the next attempt. Raises RecipeError, RunError, ContractError."""
    if not resume:
        return Resolved(load(source, changes), source, tuple(changes), ())
    if not run.is_dir():
        raise RunError(f"{run}: no such run to resume; leave --resume out to begin it")
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
    return Resolved(recipe, source, (*kept, *changes), tuple(declared))
