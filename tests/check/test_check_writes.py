"""Writes to parameters and moments that no recorded operation made."""

from __future__ import annotations

from check_fakes import PARAMETERS, Step, bits, data_parallel, write

from bitstep.check import Check, Kind
from bitstep.records import Outcome

WEIGHT, BIAS = PARAMETERS


def check(run, ranks, steps, of):
    return Check(write(run, range(ranks), range(steps), of)).result()


def test_a_parameter_that_changes_between_two_steps(tmp_path):
    faults = {(0, 3, f"param {WEIGHT} 0"): 7}
    checked = check(tmp_path, 1, 5, data_parallel(1, faults))
    (found,) = checked.findings
    assert (found.kind, found.step, found.ranks) == (Kind.WRITE, 3, (0,))
    assert (found.place.module, found.place.slot) == (WEIGHT, "param")
    assert found.title == (
        f"{WEIGHT} (param) on rank 0 was written to before the optimizer of step 3"
    )
    assert found.because == (
        "It was written to after the end of the step before and before the optimizer's begin.",
        "No recorded operation made these bits.",
    )


def test_a_moment_that_changes_between_two_steps(tmp_path):
    faults = {(0, 3, f"state.exp_avg {BIAS} 0"): 7}
    (found,) = check(tmp_path, 1, 5, data_parallel(1, faults)).findings
    assert (found.step, found.place.module, found.place.slot) == (3, BIAS, "state.exp_avg")


def test_a_write_on_one_of_two_ranks_tells_which_of_the_replicas_is_wrong(tmp_path):
    faults = {(1, 4, f"param {WEIGHT} 0"): 7}
    checked = check(tmp_path, 2, 6, data_parallel(2, faults))
    replicas, written = sorted(checked.findings, key=lambda found: found.kind)
    assert (replicas.kind, replicas.ranks, replicas.told) == (Kind.REPLICAS, (0, 1), False)
    assert (written.kind, written.ranks, written.told) == (Kind.WRITE, (1,), True)


def test_steps_that_were_recorded_without_tensors_may_have_written_anything(tmp_path):
    healthy = data_parallel(1)

    def of(rank, step):
        if step in (3, 4):
            return Step(rank, step).begin("step").add("optimizer", "root.params", "", bits(step))
        return healthy(rank, step)

    assert check(tmp_path / "levels", 1, 8, of).findings == ()
    run = write(tmp_path / "gaps", [0], (0, 1, 2, 5, 6), healthy)
    assert Check(run).result().findings == ()


def trained(change):
    """One parameter at level op: read in the forward, updated by two operations, the last of which
    leaves its bits; `change(step, found)` adds rows at the end of a step."""

    def of(rank, step):
        found = Step(rank, step).begin("op", world=1)
        if not step:
            return found.add("start", "param", "Net.w", bits(0))
        before, middle, after = bits(step - 1), bits("middle", step), bits(step)
        found.add("forward", "in.1", "Net", before, op="aten.mm")
        found.add("forward", "out.0", "Net", bits("activation", step), op="aten.mm", shape=(9,))
        found.add("optimizer", "param", "Net.w", before)
        for op, old, new in (("aten.mul_", before, middle), ("aten.addcdiv_", middle, after)):
            found.add("optimizer", "in.0", "", old, op=op)
            found.add("optimizer", "mutated.0", "", new, op=op)
        maker = SEQ[step] + len(found.rows) - 1
        left = change(step, found, maker)
        return found.add("optimizer", "param", "Net.w", after if left is None else left, 1)

    return of


SEQ = {step: 3 + 9 * (step - 1) for step in range(1, 9)}
"""First `seq` of a step of `trained`, before anything was added to one."""


def nothing(step, found, maker):
    return None


def test_an_optimizer_whose_last_write_is_what_the_step_ends_with(tmp_path):
    checked = check(tmp_path, 1, 6, trained(nothing))
    assert checked.findings == ()
    assert checked.compared.writes == 5 + 5


def test_a_write_after_the_optimizer_that_nobody_recorded(tmp_path):
    (found,) = check(tmp_path, 1, 4, trained(lambda step, *_: 7 if step == 3 else None)).findings
    assert (found.kind, found.step, found.place.module) == (Kind.WRITE, 3, "Net.w")
    assert found.because == (
        "It was written to after aten.addcdiv_ (optimizer) and before the end of the step.",
        "No recorded operation made these bits.",
    )


def test_a_recorded_write_to_a_part_of_a_parameter_is_named(tmp_path):
    def flip(step, found, maker):
        if step != 3:
            return None
        found.add("optimizer", "in.0", "", 8, op="aten.bitwise_xor_", shape=(), writer=maker)
        found.add("optimizer", "mutated.0", "", 9, op="aten.bitwise_xor_", shape=())
        return 7

    (found,) = check(tmp_path, 1, 4, trained(flip)).findings
    assert found.because[1] == "aten.bitwise_xor_ wrote into its storage."


def test_a_recorded_write_to_all_of_a_parameter_is_no_fault(tmp_path):
    def clamp(step, found, maker):
        if step < 3:
            return None
        found.add("optimizer", "mutated.0", "", bits("clamped"), op="aten.clamp_")
        return bits("clamped")

    (found,) = check(tmp_path, 1, 5, trained(clamp)).findings
    # In step 3 nothing is wrong; in step 4 this program finds other bits than step 3 left.
    assert (found.step, found.place.occurrence) == (4, 0)


def test_the_interval_is_narrowed_by_what_read_the_parameter(tmp_path):
    def of(rank, step):
        found = trained(nothing)(rank, step)
        if step == 3:
            found.faults = {}
            at = next(i for i, row in enumerate(found.rows) if row[0].slot == "param")
            found.rows[at] = (found.rows[at][0], 7, *found.rows[at][2:])
        return found

    (found,) = check(tmp_path, 1, 4, of).findings
    assert found.because[0] == (
        "It was written to after aten.mm in Net (forward) and before the optimizer's begin."
    )


def test_a_parameter_that_a_recorded_operation_wrote_in_the_forward_is_no_fault(tmp_path):
    def of(rank, step):
        found = Step(rank, step).begin("op", world=1)
        if not step:
            return found.add("start", "param", "Net.w", bits(0))
        found.add("forward", "mutated.0", "Net", bits("normed", step), op="aten.copy_")
        found.add("optimizer", "param", "Net.w", bits("normed", step))
        return found.add("optimizer", "param", "Net.w", bits(step), 1)

    checked = check(tmp_path, 1, 5, of)
    assert checked.findings == ()
    assert checked.outcome == Outcome.UNVERIFIED
