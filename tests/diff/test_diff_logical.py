"""Two runs in different layouts: compared by logical states, and by nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from bitstep.diff import Kind, compare_runs
from bitstep.fingerprint.logical import contribution
from bitstep.records import Box, Outcome, Record, Site
from bitstep.trace import TraceWriter

SHAPE = (4, 2)
WEIGHT, BIAS = "Net.weight", "Net.bias"
Cut = list[tuple[int, int]]
"""Of each rank, the rows of the weight that it holds: first, and one past the last."""
WHOLE: Cut = [(0, 4)]
HALVES: Cut = [(0, 2), (2, 4)]


def row_sum(row: int, step: int) -> int:
    """What a row of the weight adds to the sum of the whole."""
    return (row + 1) * 1_000_003 + step * 7


def write(
    run: Path, layout: str, cut: Cut, *, steps: int = 3, changed: int = 0, level: str = "phase",
    ranks: int | None = None,
) -> None:  # fmt: skip
    """A run that has its weight cut so, and a bias on every rank, counted by the first. From step
    `changed` on another number stands in the last row."""
    for rank, (first, last) in enumerate(cut[:ranks]):
        with TraceWriter(run / "attempt-000", rank) as trace:
            seq = 0

            def row(step: int, phase: str, slot: str, digest: int, module: str = "", op: str = "",
                    place: Box | None = None, occurrence: int = 0) -> Record:  # fmt: skip
                nonlocal seq
                seq += 1
                site = Site(step, rank, phase, slot, module=module, op=op, occurrence=occurrence)  # noqa: B023
                shape = place.shape if place else (2,) if module else ()
                return Record(seq, site, digest, "float32" if module else "uint64", shape, place)

            for step in range(steps + 1):
                phase, at = ("optimizer", 1) if step else ("start", 0)
                rows = [row(0, "start", "world", len(cut)),
                        row(0, "start", "layout", 0, op=layout)] if not step else []  # fmt: skip
                part = sum(row_sum(r, step) for r in range(first, last))
                part += 1 if changed and step >= changed and last == SHAPE[0] else 0
                place = Box(SHAPE, (first, 0), (last - first, 2)) if len(cut) > 1 else None
                if level == "phase":
                    rows.append(row(step, phase, "param", part, WEIGHT, place=place, occurrence=at))
                    rows.append(row(step, phase, "param", 99, BIAS, occurrence=at))
                total = contribution(WEIGHT, "param", "float32", SHAPE, part)
                total += contribution(BIAS, "param", "float32", (2,), 99) * (rank == 0)
                rows.append(row(step, phase, "root.logical.params", total % 2**64))
                trace.write(rows)
                trace.end_step(step, total % 2**64)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a", tmp_path / "b"


@pytest.mark.parametrize("level", ["step", "phase"])
def test_the_same_state_is_the_same_in_any_layout(runs: tuple[Path, Path], level: str) -> None:
    write(runs[0], "tp 1", WHOLE, level=level)
    write(runs[1], "tp 2", HALVES, level=level)
    found = compare_runs(*runs)
    assert (found.outcome, found.title) == (
        Outcome.SAME, "the same: 4 logical roots are equal, in two layouts"
    )  # fmt: skip
    assert (found.covered.ranks, found.covered.steps) == ((0, 1), (0, 3))


@pytest.mark.parametrize("changed", [1, 2, 3])
def test_the_first_step_and_the_tensor_that_differ_are_named(
    runs: tuple[Path, Path], changed: int
) -> None:
    write(runs[0], "tp 1", WHOLE)
    write(runs[1], "tp 2", HALVES, changed=changed)
    [cause] = compare_runs(*runs).causes
    assert (cause.kind, cause.where.step, cause.where.module) == (Kind.LOGICAL, changed, WEIGHT)
    assert cause.because[:2] == (f"1 of 2 tensors differ: {WEIGHT}.", "A ran tp 1; B ran tp 2.")
    assert cause.equal_before == changed


def test_without_rows_of_tensors_it_says_what_to_record(runs: tuple[Path, Path]) -> None:
    write(runs[0], "tp 1", WHOLE, level="step")
    write(runs[1], "tp 2", HALVES, changed=2, level="step")
    [cause] = compare_runs(*runs).causes
    assert cause.because[0] == ("No rows of tensors at this step say which: record at level phase.")


def test_a_rank_that_recorded_nothing_makes_it_unverified(runs: tuple[Path, Path]) -> None:
    write(runs[0], "tp 1", WHOLE)
    write(runs[1], "tp 2", HALVES, ranks=1)
    found = compare_runs(*runs)
    assert (found.outcome, found.causes) == (Outcome.UNVERIFIED, ())
    assert found.reasons == ("B ran on 2 ranks, rank 1 recorded nothing",)


def test_the_same_layout_is_compared_rank_by_rank(runs: tuple[Path, Path]) -> None:
    """The control: a replica that differs is in no logical root, and is found all the same."""
    for run in runs:
        write(run, "tp 2", HALVES, changed=2 if run == runs[1] else 0)
    [cause] = compare_runs(*runs).causes
    assert (cause.kind, cause.where.rank) != (Kind.LOGICAL, -1)
    assert cause.where.step == 2
