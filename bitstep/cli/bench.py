"""`bitstep bench fingerprint`, `tax`, `record` and `startup`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from bitstep.cli.habits import habits, numbers, show
from bitstep.cli.output import put
from bitstep.cli.screen import working

if TYPE_CHECKING:
    from bitstep.bench.record import RecordRow
    from bitstep.bench.tax import TaxRow


@click.group(no_args_is_help=False)
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
@click.option(
    "--processes",
    default="1,2",
    show_default=True,
    callback=numbers,
    metavar="W,W,...",
    help="Numbers of processes to measure, one after another. Example: --processes 1",
)
@click.option(
    "--pairs",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Pairs of runs in each comparison. Example: --pairs 9",
)
@habits
def tax_verb(recipe: str, processes: tuple[int, ...], pairs: int, as_json: bool) -> int:
    """What determinism costs a step of RECIPE, by paired runs in fresh processes.

    A ratio of 1.02 means that our step takes 2% longer; its interval is a bootstrap at 95%.

    Example: bitstep bench tax small
    """
    from bitstep.bench.tax import bench_tax

    if as_json:
        with working(f"measuring {recipe}"):
            rows = bench_tax(recipe, processes=processes, pairs=pairs)
        show([asdict(row) for row in rows], [], as_json)
    else:
        # It takes minutes to hours: each row is printed as soon as it is known.
        bench_tax(recipe, processes=processes, pairs=pairs, said=lambda row: put(_tax_line(row)))
    return 0


@bench.command("record")
@click.option(
    "--size",
    type=click.Choice(["large", "small"]),
    default="large",
    show_default=True,
    help="Program to measure: a step of 1,024 tokens and about 150 ms, or one of 2 ms. "
    "Example: --size small",
)
@click.option(
    "--pairs",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Pairs of runs in each comparison. Example: --pairs 9",
)
@habits
def record_verb(size: str, pairs: int, as_json: bool) -> int:
    """What recording costs a step at each level, by paired runs in fresh processes.

    A ratio of 1.02 means that a recorded step takes 2% longer than a bare one; its interval is a
    bootstrap at 95%. torch's DebugMode with hashes stands beside it, and msprobe's md5 mode where
    that is installed.

    Example: bitstep bench record --size small
    """
    from bitstep.bench.record import ARMS, bench_record, skipped

    if as_json:
        with working(f"measuring {size}"):
            rows = bench_record(size, pairs=pairs)
        show([asdict(row) for row in rows], [], as_json)
    else:
        bench_record(size, pairs=pairs, said=lambda row: put(_record_line(row)))
        for arm in ARMS:
            if why := skipped(arm):
                put(f"{arm:12}  {why}")
    return 0


@bench.command("startup")
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    help="Pairs of fresh processes that are started. Example: --repeats 15",
)
@habits
def startup_verb(repeats: int, as_json: bool) -> int:
    """What the contract adds to the start of a program, beyond imports: rules, sums, manifest.

    Medians over fresh processes, by the clock and by their processor time.

    Example: bitstep bench startup
    """
    from bitstep.bench.startup import bench_startup

    with working("starting processes"):
        rows = bench_startup(repeats)
    lines = [
        f"{row.piece:16}  {row.wall_ms:7.1f} ms  {row.cpu_ms:7.1f} ms of processor  "
        f"{row.repeats} repeats" + (f"  target {row.target_ms:g}" if row.target_ms else "")
        for row in rows
    ]
    show([asdict(row) for row in rows], lines, as_json)
    return 0


def _record_line(row: RecordRow) -> str:
    line = (
        f"{row.arm:12}  {row.ratio:6.3f} ({row.low:.3f} to {row.high:.3f})  {row.arm_ms:.2f} "
        f"against {row.bare_ms:.2f} ms  {row.pairs} pairs"
    )
    if row.target is not None:
        line += f"  target {row.target}"
    if row.rows:
        # Rows of level step are roots, which do not say what was hashed for them.
        hashed = f"{row.hashed / 1e6:.1f} MB hashed, " if row.arm != "step" else ""
        line += f"  a step: {row.rows:.0f} rows, {hashed}{row.written / 1e3:.0f} kB written"
    return line


def _tax_line(row: TaxRow) -> str:
    return (
        f"{row.comparison:24}  {row.processes} processes  {row.ratio:.3f} "
        f"({row.low:.3f} to {row.high:.3f})  {row.ours_ms:.1f} against {row.other_ms:.1f} ms"
        f"  {row.pairs} pairs"
    )
