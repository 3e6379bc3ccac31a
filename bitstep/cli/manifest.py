"""`bitstep manifest show` and `bitstep manifest diff`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from bitstep.cli.habits import habits, show


@click.group(no_args_is_help=False)
def manifest() -> None:
    """Look at what was collected for the attempts of a run. Needs no torch.

    Example: bitstep manifest diff runs/first runs/second
    """


@manifest.command("show")
@click.argument("run", type=click.Path(path_type=Path))
@habits
def show_verb(run: Path, as_json: bool) -> int:
    """Print every key of the newest attempt of RUN, and how the attempts follow each other.

    Example: bitstep manifest show runs/first
    """
    from bitstep.contract.manifest import read_manifest

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
    lines = [f"attempt {a.attempt}, {_origin(a.parent)}" for a in attempts]
    newest = attempts[-1].manifest.keys
    lines += [f"{key} = {json.dumps(newest[key])}" for key in sorted(newest)]
    show(value, lines, as_json)
    return 0


def _origin(parent: object) -> str:
    if not isinstance(parent, dict):
        return "from the beginning"
    return f"from attempt {parent['attempt']}, step {parent['step']}, root {parent['root']}"


@manifest.command("diff")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@habits
def diff_verb(first: Path, second: Path, as_json: bool) -> int:
    """Compare the newest attempts of two runs; status 1 if a key that must match differs.

    Example: bitstep manifest diff runs/first runs/second
    """
    from bitstep.contract.classes import MUST
    from bitstep.contract.manifest import compare, read_manifest

    differences = compare(read_manifest(first)[-1].manifest, read_manifest(second)[-1].manifest)
    lines = [
        f"{d.class_}: {d.key}: {json.dumps(d.a)} against {json.dumps(d.b)} ({d.reason})"
        for d in differences
    ]
    value = [d._asdict() for d in differences]
    show(value, lines or ["no key differs"], as_json)
    return int(any(d.class_ == MUST for d in differences))
