"""Collect the manifest of this attempt from the live process, after its settings are applied.

1. What the caller knows: recipe, data, layout, command, model. A program that is not ours has no
   recipe, and says itself what its options and its source are.
2. What this process runs on, with and under: `hardware`, `software`, `settings`, `caches`.
3. Environment variables that bear on numerics, by an allow-list; no other value is looked at.
4. The process groups, and the order in which they were measured to sum.

Importing this module does not import torch; calling `collect` does.

>>> manifest = collect({"run": {"seed": 1}}, command=["bitstep"], corpus_digest="", order_digest="",
...                    layout={"logical": {"ranks": 8}, "physical": {"processes": 1}})
>>> manifest.keys["recipe.run.seed"], manifest.keys["layout.logical.ranks"]
(1, 8)
"""

from __future__ import annotations

import math
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bitstep.contract.caches import caches
from bitstep.contract.hardware import hardware
from bitstep.contract.manifest import Manifest
from bitstep.contract.model import models
from bitstep.contract.placement import node
from bitstep.contract.program import commit, handed_over, source_digest, without_secrets
from bitstep.contract.settings import settings
from bitstep.contract.software import software
from bitstep.contract.variables import variables
from bitstep.contract.versions import KEY, VERSION
from bitstep.errors import ContractError


def collect(
    recipe: Mapping[str, Any] | None,
    *,
    command: Sequence[str],
    corpus_digest: str | None = None,
    order_digest: str | None = None,
    layout: Mapping[str, Any],
    declared: Sequence[str] = (),
    source: Mapping[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
    named: Mapping[str, str] | None = None,
    roots: Iterable[tuple[str, Any]] = (),
    wakes_gpu: bool = True,
) -> Manifest:
    """Everything that two attempts are compared by.

    Raises ContractError for a value that JSON does not hold.

    Args:
        recipe: resolved, nested or dotted.
        layout: a table "logical" and a table "physical".
        declared: the recipe keys that differ from the parent's by intent, as --set names them.
        source: takes the place of the commit and the digest of our own code.
        arguments: options that a program without a recipe was given, without secrets.
        named: digests of the files that its options name.
        roots: the models, by name.
        wakes_gpu: a GPU that the process has not used is else left asleep: to ask for its name
            would take its memory.
    """
    import torch

    uses_gpu = wakes_gpu or bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    data = {"digest": corpus_digest, "order": order_digest}
    table = {
        "hardware": hardware(torch, uses_gpu),
        "software": software(torch, uses_gpu),
        "settings": settings(torch),
        "caches": caches(os.environ, sys.modules),
        "environment": variables(os.environ),
        "recipe": recipe or {},
        "arguments": arguments or {},
        "data": {n: v for n, v in data.items() if v is not None} | {"named": named or {}},
        **_laid_out(layout, is_ours=recipe is not None, roots=roots),
        "program": _program(command, source),
    }
    keys: dict[str, Any] = {KEY: VERSION}
    for key, value in _flat(table, ""):
        if key in keys:
            raise ContractError(f"manifest key {key} stands twice: rename one of them")
        keys[key] = value
    return Manifest(dict(sorted(keys.items())), tuple(f"recipe.{name}" for name in declared))


def _laid_out(
    layout: Mapping[str, Any], is_ours: bool, roots: Iterable[tuple[str, Any]]
) -> dict[str, Any]:
    """Layout, groups and model, each where it belongs: what bits do not depend on is physical."""
    from bitstep.contract.groups import process_groups

    physical = {**node(os.environ), **layout.get("physical", {})}
    table: dict[str, Any] = {"layout": {**layout, "physical": physical}}
    # The sums of our engine have one tree, whichever groups carry them.
    (physical if is_ours else table)["groups"] = process_groups()
    # An engine that cuts tensors shows its cuts in what this rank holds of the model.
    (physical if "engine" in physical else table)["model"] = models(roots)
    return table


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = f"{prefix}{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{key}.")
        else:
            yield key, _plain(value, key)


def _plain(value: Any, key: str) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(inner, key) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)  # JSON has no word for inf and nan
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ContractError(f"manifest key {key} = {value!r}: give text, a number, a list or a table")


def _program(command: Sequence[str], source: Mapping[str, Any] | None) -> dict[str, Any]:
    ours = {"commit": commit(), "source": source_digest()} if source is None else source
    return {
        "command": without_secrets(command),
        **ours,
        **handed_over(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
