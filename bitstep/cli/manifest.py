"""`bitstep manifest show` and `bitstep manifest diff`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bitstep.cli.habits import habits, show

if TYPE_CHECKING:
    from bitstep.contract.manifest import Manifest


@click.group(no_args_is_help=False)
def manifest() -> None:
    """Look at what two runs must have in common: what was collected for their attempts.

    Example: bitstep manifest diff runs/first runs/second
    """


@manifest.command("show")
@click.argument("run", type=click.Path(path_type=Path), required=False)
@habits
def show_verb(run: Path | None, as_json: bool) -> int:
    """Print every key of the newest attempt of RUN, and how the attempts follow each other.

    Without RUN: what would be collected here and now, of this machine and environment.

    Example: bitstep manifest show runs/first
    """
    from bitstep.report.manifest import manifest_lines

    if run is None:
        now = _now()
        show(dict(now.keys), manifest_lines(now.keys, _verbose()), as_json)
        return 0
    from bitstep.contract.manifest import read_manifest
    from bitstep.contract.placement import newest

    attempts = read_manifest(run)
    value = [
        {
            "attempt": attempt.attempt,
            "parent": attempt.parent,
            "declared": list(attempt.manifest.declared),
            "keys": dict(attempt.manifest.keys),
        }
        for attempt in attempts
    ]
    value[-1]["keys"] = dict(newest(run).keys)
    lines = [f"attempt {a.attempt}, {_origin(a.parent)}" for a in attempts]
    show(value, [*lines, *manifest_lines(newest(run).keys, _verbose())], as_json)
    return 0


def _now() -> Manifest:
    from bitstep.contract.collect import collect

    return collect(None, command=(), layout={}, source={})


def _verbose() -> bool:
    return logging.getLogger("bitstep").isEnabledFor(logging.DEBUG)


def _origin(parent: Any) -> str:
    if not isinstance(parent, dict):
        return "from the beginning"
    return f"from attempt {parent['attempt']}, step {parent['step']}, root {parent['root']}"


@manifest.command("diff")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@habits
def diff_verb(first: Path, second: Path, as_json: bool) -> int:
    """Compare the newest attempts of two runs, by whether a difference can change bits.

    Each difference has its reason; -v gives every key a line of its own. Status 1 if a key that
    must match differs. Needs no torch.

    Example: bitstep manifest diff runs/first runs/second
    """
    from bitstep.contract.classes import MUST
    from bitstep.contract.manifest import compare
    from bitstep.contract.placement import newest
    from bitstep.report.manifest import differences_json, differences_text

    differences = compare(newest(first), newest(second))
    lines = differences_text(differences, _verbose()).split("\n")
    show(differences_json(differences), lines, as_json)
    return int(any(d.class_ == MUST for d in differences))
