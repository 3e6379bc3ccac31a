"""Tensors that ranks hold in common: what is reported, and what must not be."""

from __future__ import annotations

import pytest
from check_fakes import PARAMETERS, Step, bits, data_parallel, write

from bitstep.check import Check, Kind
from bitstep.diff.leave_out import NO_TENSORS
from bitstep.records import Box, Outcome

WEIGHT, BIAS = PARAMETERS


def check(run, ranks, steps, of):
    return Check(write(run, range(ranks), range(steps), of)).result()


def test_a_healthy_run_agrees(tmp_path):
    checked = check(tmp_path, 2, 6, data_parallel(2))
    assert checked.outcome == Outcome.SAME
    assert checked.findings == ()
    assert checked.ranks == (0, 1)
    assert checked.steps == (1, 5)
    # 2 parameters have 5 readings a step, in steps 3 to 5. The gradient of step 2 proves them:
    # there it is 4 later readings, and the 3 tensors as they were read before.
    assert checked.compared.replicas == 2 * (5 * 3 + 4 + 3)


def test_of_two_ranks_nobody_can_tell_which_is_wrong(tmp_path):
    faults = {(1, 4, f"param {WEIGHT} 1"): 7}
    (found,) = check(tmp_path, 2, 7, data_parallel(2, faults)).findings
    assert (found.kind, found.step, found.ranks, found.told) == (Kind.REPLICAS, 4, (0, 1), False)
    assert (found.place.module, found.place.slot, found.place.occurrence) == (WEIGHT, "param", 1)
    assert found.title == f"{WEIGHT} (param) differs between ranks 0 and 1 since step 4"


def test_of_three_ranks_the_one_that_is_alone_is_named(tmp_path):
    faults = {(2, 4, f"param {WEIGHT} 1"): 7}
    (found,) = check(tmp_path, 3, 7, data_parallel(3, faults)).findings
    assert (found.step, found.ranks, found.told) == (4, (2,), True)
    assert found.title == f"{WEIGHT} (param) on rank 2 differs from ranks 0 and 1 since step 4"


def test_two_against_two_cannot_be_told(tmp_path):
    faults = {(rank, 4, f"param {WEIGHT} 1"): 7 for rank in (1, 3)}
    (found,) = check(tmp_path, 4, 7, data_parallel(4, faults)).findings
    assert (found.ranks, found.told) == ((0, 1, 2, 3), False)


def test_a_gradient_that_was_reduced_on_one_rank_otherwise(tmp_path):
    faults = {(1, 3, f"grad {BIAS} 0"): 7, (1, 3, f"param {BIAS} 1"): 8}
    (found,) = check(tmp_path, 3, 6, data_parallel(3, faults)).findings
    assert (found.step, found.ranks, found.place.slot) == (3, (1,), "grad")
    assert found.because[0] == (
        "The gradients differ as the optimizer finds them, after their reduction."
    )


def test_a_moment_that_differs(tmp_path):
    faults = {(1, 3, f"state.exp_avg {BIAS} 0"): 7}
    found = check(tmp_path, 3, 6, data_parallel(3, faults)).findings[0]
    assert (found.kind, found.step, found.ranks) == (Kind.REPLICAS, 3, (1,))
    assert found.place.slot == "state.exp_avg"


def test_a_fault_in_the_first_step_is_dated_to_it_by_the_gradients_that_agree_later(tmp_path):
    faults = {(1, 1, f"param {WEIGHT} 1"): 7}
    (found,) = check(tmp_path, 2, 5, data_parallel(2, faults)).findings
    assert (found.step, found.place.module, found.place.slot) == (1, WEIGHT, "param")


def test_ranks_that_began_differently(tmp_path):
    faults = {(1, 0, f"param {WEIGHT} 0"): 7}
    (found,) = check(tmp_path, 2, 5, data_parallel(2, faults)).findings
    assert (found.step, found.place.phase) == (0, "start")


def test_a_difference_is_dated_to_where_it_began_and_not_to_where_it_grew(tmp_path):
    faults = {(1, 0, f"param {WEIGHT} 0"): 7, (2, 1, f"param {WEIGHT} 1"): 8}
    (found,) = check(tmp_path, 3, 5, data_parallel(3, faults)).findings
    assert (found.step, found.ranks, found.told) == (0, (0, 1, 2), False)


def test_two_faults_of_two_tensors_are_two_findings(tmp_path):
    faults = {(1, 3, f"param {WEIGHT} 1"): 7, (2, 5, f"param {BIAS} 1"): 7}
    first, second = check(tmp_path, 3, 8, data_parallel(3, faults)).findings
    assert (first.step, first.ranks, first.place.module) == (3, (1,), WEIGHT)
    assert (second.step, second.ranks, second.place.module) == (5, (2,), BIAS)


def test_tensors_that_part_together_are_one_finding(tmp_path):
    faults = {(1, 3, f"param {name} 1"): 7 for name in PARAMETERS}
    (found,) = check(tmp_path, 3, 8, data_parallel(3, faults)).findings
    assert (found.place.module, found.also) == (WEIGHT, (f"{BIAS} (param)",))


def test_roots_are_compared_where_no_tensor_was_recorded(tmp_path):
    def of(rank, step):
        found = Step(rank, step).begin("step", world=3)
        odd = rank == 1 and step >= 4
        if step:
            found.add("optimizer", "root.grads", "", bits("grads", step))
        phase = "optimizer" if step else "start"
        return found.add(phase, "root.params", "", bits("params", step, odd))

    (found,) = check(tmp_path, 3, 7, of).findings
    assert (found.step, found.ranks, found.place.slot) == (4, (1,), "root.params")


def test_a_rank_that_has_freed_its_model_at_the_end_is_not_compared_there(tmp_path):
    def of(rank, step):
        gone = rank == 1 and step == 6
        digest = NO_TENSORS if gone else bits("params", step)
        return (
            Step(rank, step)
            .begin("step", world=2)
            .add("optimizer" if step else "start", "root.params", "", digest)
        )

    checked = check(tmp_path, 2, 7, of)
    assert checked.findings == ()
    assert checked.outcome == Outcome.SAME


def test_a_parameter_of_another_dtype_differs_though_its_digest_does_not(tmp_path):
    def of(rank, step):
        phase, occurrence = ("optimizer", 1) if step else ("start", 0)
        dtype = "int32" if rank == 2 and step >= 4 else "float32"
        return (
            Step(rank, step)
            .begin(world=3)
            .add(phase, "param", "Net.w", bits("w", step), occurrence, dtype=dtype)
        )

    (found,) = check(tmp_path, 3, 6, of).findings
    assert (found.step, found.ranks) == (4, (2,))


def replicated_shards(rank, step, odd):
    """Ranks 0 and 2 hold the first half of a parameter, 1 and 3 the second."""
    half = rank % 2
    place = Box((8,), (4 * half,), (4,))
    found = Step(rank, step).begin(world=4)
    phase, occurrence = ("optimizer", 1) if step else ("start", 0)
    digest = bits("shard", half, step, odd)
    return found.add(phase, "param", "Net.w", digest, occurrence, shape=(8,), place=place)


def test_shards_are_compared_with_those_of_the_same_place(tmp_path):
    def of(rank, step):
        return replicated_shards(rank, step, rank == 3 and step >= 4)

    (found,) = check(tmp_path, 4, 7, of).findings
    assert (found.step, found.ranks, found.told) == (4, (1, 3), False)


def test_shards_of_different_places_may_differ(tmp_path):
    def of(rank, step):
        return replicated_shards(rank, step, False)

    assert check(tmp_path, 4, 7, of).outcome == Outcome.SAME


def with_expert(group, experts_of=lambda rank: rank):
    """A healthy program, with an expert that the ranks of each group have of their own."""
    healthy = data_parallel(group)

    def of(rank, step):
        found = healthy(rank, step)
        # Zeros everywhere at the start, and another expert on each rank from then on.
        mine = experts_of(rank)
        digest = bits("expert", mine, step) if step else 0
        if step:
            found.add("optimizer", "grad", "Net.expert", bits("expert grad", mine, step))
            taken = bits("steps", step if mine else 1)
            found.add("optimizer", "state.step", "Net.expert", taken, 1)
        phase, occurrence = ("optimizer", 1) if step else ("start", 0)
        return found.add(phase, "param", "Net.expert", digest, occurrence)

    return of


def test_experts_that_begin_alike_are_no_replicas(tmp_path):
    checked = check(tmp_path, 2, 8, with_expert(2))
    assert checked.findings == ()
    assert checked.outcome == Outcome.SAME
    assert checked.notes[0].startswith("Net.expert: equal on all ranks at the start")


def test_experts_are_compared_within_their_group(tmp_path):
    def experts_of(rank):
        return rank % 2

    healthy = with_expert(4, experts_of)
    assert check(tmp_path / "healthy", 4, 7, healthy).findings == ()

    def of(rank, step):
        found = healthy(rank, step)
        found.faults = {(3, 5, "x"): 0}
        if rank == 3 and step >= 5:
            found.rows[-1] = (found.rows[-1][0], 7, *found.rows[-1][2:])
        return found

    (found,) = check(tmp_path / "faulty", 4, 7, of).findings
    assert (found.step, found.ranks, found.place.module) == (5, (1, 3), "Net.expert")


def test_statistics_of_each_rank_are_no_replicas(tmp_path):
    healthy = data_parallel(2)

    def of(rank, step):
        found = healthy(rank, step)
        phase, occurrence = ("optimizer", 1) if step else ("start", 0)
        mean = bits("mean", rank, step) if step else 0
        found.add(phase, "buffer", "Net.norm.running_mean", mean, occurrence)
        return found.add(phase, "buffer", "Net.norm.count", bits("count", step), occurrence)

    assert check(tmp_path, 2, 8, of).findings == ()


def test_a_buffer_that_agreed_and_does_not_any_more(tmp_path):
    healthy = data_parallel(3)

    def of(rank, step):
        phase, occurrence = ("optimizer", 1) if step else ("start", 0)
        digest = bits("position", step, rank == 2 and step >= 5)
        return healthy(rank, step).add(phase, "buffer", "Net.position", digest, occurrence)

    (found,) = check(tmp_path, 3, 8, of).findings
    assert (found.step, found.ranks) == (5, (2,))
    assert found.title.startswith("Net.position (buffer) on rank 2 differs")


@pytest.mark.parametrize("period", [2, 3, 4])
def test_ranks_that_average_their_parameters_now_and_then_are_no_replicas(tmp_path, period):
    def of(rank, step):
        found = Step(rank, step).begin(world=2)
        if not step:
            return found.add("start", "param", "Net.w", bits("w"))
        found.add("optimizer", "grad", "Net.w", bits("grad", rank, step))
        own = rank if step % period else -1
        return found.add("optimizer", "param", "Net.w", bits("w", own, step), 1)

    checked = check(tmp_path, 2, 14, of)
    assert checked.findings == ()
    assert checked.outcome == Outcome.UNVERIFIED


def test_ranks_that_train_alone_cannot_be_told(tmp_path):
    def of(rank, step):
        phase, occurrence = ("optimizer", 1) if step else ("start", 0)
        own = rank if step else -1
        return (
            Step(rank, step)
            .begin(world=2)
            .add(phase, "param", "Net.w", bits("w", own, step), occurrence)
        )

    checked = check(tmp_path, 2, 8, of)
    assert checked.outcome == Outcome.UNVERIFIED
    assert checked.reasons[0].startswith("there is nothing to check against itself")


def test_one_rank_has_nothing_to_be_checked_against(tmp_path):
    checked = check(tmp_path, 1, 5, data_parallel(1))
    assert checked.outcome == Outcome.UNVERIFIED
    assert checked.reasons[0].startswith("there is nothing to check against itself")


def test_a_rank_that_recorded_nothing_makes_it_unverified(tmp_path):
    checked = check(tmp_path, 2, 5, data_parallel(4))
    assert checked.outcome == Outcome.UNVERIFIED
    assert checked.reasons == ("attempt 0: ranks 2 and 3 of 4 recorded nothing",)
