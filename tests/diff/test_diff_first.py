"""What differs first is named, and not what shows it a little later, or sounds like it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from simulated import NAMES, Life, first_state, record

from bitstep.diff import Cause, Difference, Kind, compare_runs
from bitstep.records import Outcome

Fault = Callable[[Life, int, int, str, int], None]
"""A fault that is told, last, the number of the run: 0 or 1."""


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a", tmp_path / "b"


def compared(runs: tuple[Path, Path], fault: Fault, **options: object) -> Difference:
    """The difference of two recordings that differ by what the fault does in each."""
    for number, run in enumerate(runs):

        def mine(life: Life, rank: int, step: int, moment: str, number: int = number) -> None:
            fault(life, rank, step, moment, number)

        record(run, fault=mine, **options)  # type: ignore[arg-type]
    return compare_runs(*runs)


def one_cause(found: Difference) -> Cause:
    assert len(found.causes) == 1
    return found.causes[0]


def stray_gradient(life: Life, rank: int, step: int, moment: str, run: int) -> None:
    if (step, moment, run) == (3, "update", 1):
        life.grads[NAMES[1]] ^= 1


def test_a_gradient_is_named_rather_than_the_root_before_it(runs: tuple[Path, Path]) -> None:
    cause = one_cause(compared(runs, stray_gradient))
    assert (cause.kind, cause.where.slot, cause.where.module) == (Kind.UNSEEN, "grad", NAMES[1])
    assert cause.title == "Net.1.weight (grad) was changed by something that was not recorded"


def test_where_no_gradient_was_recorded_its_root_is_named(runs: tuple[Path, Path]) -> None:
    cause = one_cause(compared(runs, stray_gradient, level="step"))
    assert (cause.kind, cause.where.slot) == (Kind.ORIGIN, "root.grads")


def test_a_write_between_an_operation_and_the_end_of_its_module_is_unseen(
    runs: tuple[Path, Path],
) -> None:
    def fault(life: Life, rank: int, step: int, moment: str, run: int) -> None:
        if (step, moment) == (3, "loss"):
            life.call("forward", "aten.addmm", [("x", 70)], "Net.1", result=77, microbatch=0)
            life.row("forward", "out.0", 77 + run, "Net.1", microbatch=0)

    cause = one_cause(compared(runs, fault))
    assert (cause.kind, cause.where.slot, cause.where.op) == (Kind.UNSEEN, "out.0", "")
    assert cause.title == "out.0 of Net.1 was changed by something that was not recorded"
    assert cause.because[0] == (
        "It was equal after aten.addmm #0 in Net.1, phase forward, and differs at out.0 Net.1, "
        "phase forward."
    )


@pytest.mark.parametrize("level", ["op", "module"])
def test_a_parameter_that_a_module_gives_back_is_named_where_it_changed(
    runs: tuple[Path, Path], level: str
) -> None:
    """Layers of Megatron give back their bias, to be added later: no operation made it."""

    def fault(life: Life, rank: int, step: int, moment: str, run: int) -> None:
        if (step, moment) == (3, "data"):
            life.row("optimizer", "param", 50, "Net.1.bias")
        if (step, moment) == (3, "loss"):
            life.row("forward", "out.1", 50 + run, "Net.1", microbatch=0)

    cause = one_cause(compared(runs, fault, level=level))
    assert (cause.kind, cause.where.slot, cause.where.module) == (Kind.UNSEEN, "out.1", "Net.1")
    assert cause.title == "Net.1.bias (param) was changed by something that was not recorded"
    since = "after" if level == "op" else "at"
    assert cause.because[0] == (
        f"It was equal {since} param Net.1.bias, phase optimizer, and differs at out.1 Net.1, "
        "phase forward."
    )


@pytest.mark.parametrize("level", ["op", "module"])
def test_a_parameter_that_a_module_gives_back_again_is_named(
    runs: tuple[Path, Path], level: str
) -> None:
    """In the second microbatch it is another one; its last hash was in the step before."""

    def fault(life: Life, rank: int, step: int, moment: str, run: int) -> None:
        if (step, moment) == (2, "end"):
            life.row("optimizer", "param", 50, "Net.1.bias", occurrence=1, shape=(4,))
        if (step, moment) == (3, "loss"):
            life.row("forward", "out.1", 50, "Net.1", microbatch=0, shape=(4,))
            life.row("forward", "out.1", 50 + run, "Net.1", microbatch=1, shape=(4,))

    cause = one_cause(compared(runs, fault, level=level))
    assert (cause.kind, cause.where.slot, cause.where.microbatch) == (Kind.UNSEEN, "out.1", 1)
    assert cause.title == "Net.1.bias (param) was changed by something that was not recorded"


def test_what_an_operation_was_given_before_in_the_step_is_no_data(
    runs: tuple[Path, Path],
) -> None:
    """A weight of which each rank keeps a part: no record of the state has the bits of all."""

    def fault(life: Life, rank: int, step: int, moment: str, run: int) -> None:
        if (step, moment) == (3, "loss"):
            for microbatch, weight in enumerate((50, 50 + run)):
                given = [("x", 70 + microbatch), ("w", weight)]
                life.call("forward", "aten.mm", given, "Net.1", microbatch=microbatch)

    cause = one_cause(compared(runs, fault))
    assert (cause.kind, cause.where.op, cause.where.slot) == (Kind.UNSEEN, "aten.mm", "in.1")
    assert cause.because[0] == (
        "It was equal at aten.mm #0 in Net.1, phase forward, and differs at aten.mm #0 in Net.1, "
        "phase forward, microbatch 1."
    )


def test_what_a_module_computed_is_no_parameter(runs: tuple[Path, Path]) -> None:
    def fault(life: Life, rank: int, step: int, moment: str, run: int) -> None:
        if (step, moment) == (3, "loss"):
            life.row("forward", "out.1", 50 + run, "Net.1", microbatch=0)

    cause = one_cause(compared(runs, fault, level="module"))
    assert (cause.kind, cause.where.slot) == (Kind.ORIGIN, "out.1")


def test_a_parameter_that_an_operation_is_given_is_no_data(runs: tuple[Path, Path]) -> None:
    states = [first_state()], [first_state()]
    for run, mine in zip(runs, states, strict=True):

        def flip(life: Life, rank: int, step: int, moment: str, run: Path = run) -> None:
            if (step, moment, run) == (4, "forward", runs[1]):
                states[1][0].params[NAMES[0]] ^= 1

        record(run, states=mine, fault=flip)
    cause = one_cause(compare_runs(*runs))
    assert (cause.kind, cause.where.op, cause.where.slot) == (Kind.UNSEEN, "aten.mm", "in.1")
    assert cause.title == "Net.0.weight (param) was changed by something that was not recorded"
    assert cause.because[0] == (
        "It was equal at the end of step 3, and differs at aten.mm #0 in Net.0, phase forward."
    )


def test_of_several_tensors_with_the_same_bits_the_one_that_changed_is_named(
    runs: tuple[Path, Path],
) -> None:
    """Biases begin as zeros, all of them."""
    names = ("Net.0.bias", "Net.1.bias")

    def fault(life: Life, rank: int, step: int, moment: str, run: int) -> None:
        if (step, moment) == (3, "loss"):
            for name in names:
                life.row("reduce", "grad", 0, name)
            life.call("reduce", "aten.copy_", [("", run)], result=9)
            for name in names:
                life.row("scale", "grad", run if name == names[0] else 0, name)

    cause = one_cause(compared(runs, fault))
    assert cause.title == "Net.0.bias (grad) was changed by something that was not recorded"


def test_what_an_operation_of_the_step_before_made_is_no_data(runs: tuple[Path, Path]) -> None:
    def fault(life: Life, rank: int, step: int, moment: str, run: int) -> None:
        if (step, moment) == (3, "loss"):
            life.call("forward", "aten.exp", [("x", 70)], result=77)
        if (step, moment) == (4, "loss"):
            life.noise = life.call("forward", "aten.mul", [("kept", 77 + run)])

    cause = one_cause(compared(runs, fault))
    assert (cause.kind, cause.where.op, cause.where.step) == (Kind.UNSEEN, "aten.mul", 4)
    assert cause.because[0] == (
        "It was equal after aten.exp #0, phase forward, of step 3, and differs at aten.mul #0, "
        "phase forward."
    )


def test_what_was_made_for_both_runs_is_a_choice_of_data(runs: tuple[Path, Path]) -> None:
    def fault(life: Life, rank: int, step: int, moment: str, run: int) -> None:
        if (step, moment) == (3, "loss"):
            for value in (77, 78):
                life.call("forward", "aten.exp", [("x", value)], result=value)
        if (step, moment) == (4, "loss"):
            life.noise = life.call("forward", "aten.mul", [("target", 77 + run)])

    assert one_cause(compared(runs, fault)).kind is Kind.DATA


def test_what_is_gathered_in_the_forward_comes_before_a_reduction(
    runs: tuple[Path, Path],
) -> None:
    """Rank 0 parts in a gather; that rank 1 parts in a reduction comes later in the step."""

    def fault(life: Life, rank: int, step: int, moment: str, run: int) -> None:
        if (step, moment) == (4, "forward"):
            wrong = run if rank == 0 else 0
            if rank == 0:
                life.row("gather", "in.0", 5, "0,1", "c10d.broadcast_", microbatch=0)
            life.row("gather", "mutated.0", 5 + wrong, "0,1", "c10d.broadcast_", microbatch=0)
        if (rank, step, moment, run) == (1, 4, f"reduce {NAMES[0]}", 1):
            life.noise = 99

    first = compared(runs, fault, world=2).causes[0]
    assert (first.kind, first.where.op, first.ranks) == (Kind.COLLECTIVE, "c10d.broadcast_", (0,))
    assert first.because[0] == "All 2 members gave equal inputs."


def test_a_rank_that_sent_and_kept_nothing_is_the_first(runs: tuple[Path, Path]) -> None:
    def fault(life: Life, rank: int, step: int, moment: str, run: int) -> None:
        if (step, moment) == (3, "forward"):
            given = 80 + run if rank == 1 else 80
            for slot, value in (("in.0", given), ("mutated.0", 7 + run)):
                life.row("reduce", slot, value, "0,1", "c10d.allreduce_", 9, microbatch=0)

    found = compared(runs, fault, world=2)
    assert [(cause.kind, cause.ranks) for cause in found.causes] == [(Kind.UNSEEN, (1,))]
    assert [(one.rank, one.source) for one in found.receivers] == [(0, (1,))]


def test_all_settings_of_a_group_that_differ_are_named_at_once(runs: tuple[Path, Path]) -> None:
    for run, (key, value) in zip(runs, (("foreach", 0), ("fused", 1)), strict=True):

        def tell(
            life: Life, rank: int, step: int, moment: str, key: str = key, value: int = value
        ) -> None:
            if moment == "update":
                life.row("optimizer", f"args.{key}", value, "group0", "AdamW", dtype="int64",
                         shape=())  # fmt: skip

        record(run, fault=tell, fused=key == "fused")
    cause = one_cause(compare_runs(*runs))
    assert (cause.kind, cause.where.step) == (Kind.CONFIGURATION, 1)
    assert cause.title == "AdamW group0: foreach 0 -> not set, fused not set -> 1"


def test_a_setting_that_changes_no_bit_at_first_is_dated_from_where_it_differs(
    runs: tuple[Path, Path],
) -> None:
    def fault(life: Life, rank: int, step: int, moment: str, run: int) -> None:
        if moment == "update":
            life.fused = bool(run) and step >= 3
            slot = "args.fused" if run else "args.foreach"
            life.row("optimizer", slot, run, "group0", "AdamW", dtype="int64", shape=())

    cause = one_cause(compared(runs, fault))
    assert (cause.kind, cause.where.step) == (Kind.CONFIGURATION, 3)
    assert cause.because[0] == "It differs from step 1 on, the bits of the state from here."


def add_in_order(life: Life, order: tuple[int, ...], phase: str) -> int:
    total = 0
    for value in order:
        total = life.call(phase, "aten.add_", [("total", total), ("", value)], out="mutated.0")
    return total


def test_two_values_that_changed_places_are_no_order(runs: tuple[Path, Path]) -> None:
    def fault(life: Life, rank: int, step: int, moment: str, run: int) -> None:
        if (step, moment) == (3, "loss"):
            life.noise = add_in_order(life, (71, 72) if run else (72, 71), "forward")

    assert one_cause(compared(runs, fault)).kind is not Kind.ORDER


def test_memory_that_is_used_again_is_no_buffer_that_was_put_together(
    runs: tuple[Path, Path],
) -> None:
    """The last recorded write to it was of numbers of another kind, in its former life."""

    def fault(life: Life, rank: int, step: int, moment: str, run: int) -> None:
        if (step, moment) == (3, "forward"):
            wrote = life.row("forward", "out.0", 70, "", "aten.sum", shape=(2,))
            life.row("reduce", "in.0", 80 + run * (rank == 1), "0,1", "c10d.allreduce_", 9,
                     dtype="int64", writer=wrote, microbatch=0)  # fmt: skip
            life.row("reduce", "mutated.0", 7 + run, "0,1", "c10d.allreduce_", 9, microbatch=0)

    first = compared(runs, fault, world=2).causes[0]
    assert (first.kind, first.ranks) == (Kind.UNSEEN, (1,))
    assert first.because[0].endswith("no recorded operation made it.")


def test_bits_that_come_back_after_equal_steps_are_followed_to_where_they_were_made(
    runs: tuple[Path, Path],
) -> None:
    sums: dict[int, int] = {}

    def fault(life: Life, rank: int, step: int, moment: str, run: int) -> None:
        if (step, moment) == (2, "end"):
            order = (71, 73, 72, 74) if run else (71, 72, 73, 74)
            sums[run] = add_in_order(life, order, "optimizer")
        if (step, moment) == (5, "loss"):
            life.noise = life.call("forward", "aten.mul", [("kept", sums[run])])

    cause = one_cause(compared(runs, fault))
    assert (cause.kind, cause.where.step, cause.where.op) == (Kind.ORDER, 2, "aten.add_")


def test_an_evaluation_after_the_last_step_is_no_step(runs: tuple[Path, Path]) -> None:
    record(runs[0])
    record(runs[1], evaluate=True)
    found = compare_runs(*runs)
    assert (found.outcome, found.reasons) == (Outcome.SAME, ())
    assert (
        "after its last step B ran forwards without training, which the other did not"
        in found.notes
    )


def test_an_evaluation_in_one_run_is_not_compared_with_a_step_of_the_other(
    runs: tuple[Path, Path],
) -> None:
    record(runs[0], steps=5, evaluate=True)
    record(runs[1], steps=6)
    found = compare_runs(*runs)
    assert (found.outcome, found.causes) == (Outcome.UNVERIFIED, ())
    assert found.reasons == ("only B has step 6",)


def test_calls_in_another_order_are_paired_also_where_one_run_has_one_more(
    runs: tuple[Path, Path],
) -> None:
    """Parameters in another order, and one run saves them in that step."""

    def fault(life: Life, rank: int, step: int, moment: str, run: int) -> None:
        if (step, moment) == (3, "loss"):
            for value in (73, 71, 72) if run else (71, 72, 73):
                life.call("scale", "aten.mul_", [("", value)], out="mutated.0", result=value + 100)
            if run:
                life.call("scale", "aten.clone", [("", 5)], result=5)

    cause = one_cause(compared(runs, fault))
    assert (cause.kind, cause.where.op) == (Kind.MISSING, "aten.clone")
