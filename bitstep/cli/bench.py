"""`bitstep bench fingerprint` and `bitstep bench tax`."""

from __future__ import annotations

from dataclasses import asdict

import click

from bitstep.cli.habits import habits, show
from bitstep.cli.screen import working


@click.group()
def bench() -> None:
    """Measure on this machine. Never part of a test.

    Example: bitstep bench fingerprint
    """


@bench.command("fingerprint")
@click.option(
    "--megabytes",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Size of the large tensors, in units of 2^20 bytes. Example: --megabytes 256",
)
@habits
def fingerprint_verb(megabytes: int, as_json: bool) -> int:
    """Speed of the fingerprint on one core, beside xxh3, torch.hash_tensor and a copy.

    Example: bitstep bench fingerprint
    """
    from bitstep.bench.fingerprint import bench_fingerprint

    with working("measuring"):
        rows = bench_fingerprint(megabytes)
    lines = [
        f"{row.subject:18}  {row.dtype:14}  {row.nbytes:10} bytes  {row.gb_per_s:6.1f} GB/s"
        f"  {row.microseconds:10.2f} us  {row.ratio:5.2f} of xxh3  {row.target}"
        for row in rows
    ]
    show([asdict(row) for row in rows], lines, as_json)
    return 0


@bench.command("tax")
@click.argument("recipe")
@habits
def tax_verb(recipe: str, as_json: bool) -> int:
    """What determinism costs a step of RECIPE, by paired runs in fresh processes.

    Example: bitstep bench tax small
    """
    from bitstep.bench.tax import bench_tax

    with working(f"measuring {recipe}"):
        rows = bench_tax(recipe)
    show([asdict(row) for row in rows], [str(row) for row in rows], as_json)
    return 0
