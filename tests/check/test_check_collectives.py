"""What the members of a collective got, and gathered parameters against their shards."""

from __future__ import annotations

import pytest
from check_fakes import Step, bits, write

from bitstep.check import Check, Kind
from bitstep.records import Box, Outcome


def check(run, ranks, of, steps=4):
    return Check(write(run, range(ranks), range(steps), of)).result()


def reduced(op, odd=None, members="0,1,2", phase="reduce"):
    """One collective a step; rank `odd[1]` gets other bits in step `odd[0]`."""

    def of(rank, step):
        found = Step(rank, step).begin(world=3)
        if step:
            found.add(phase, "in.0", members, bits("mine", rank, step), op=op)
            got = bits("sum", step, odd == (step, rank))
            found.add(phase, "mutated.0", members, got, op=op)
        return found

    return of


OPS = ["c10d.allreduce_", "c10d.broadcast_", "c10d._allgather_base_",
       "_c10d_functional.all_reduce", "_c10d_functional.all_gather_into_tensor"]  # fmt: skip


@pytest.mark.parametrize("op", OPS)
def test_what_every_member_must_get_alike(tmp_path, op):
    assert check(tmp_path / "healthy", 3, reduced(op)).outcome == Outcome.SAME
    checked = check(tmp_path / "faulty", 3, reduced(op, odd=(2, 1)))
    (found,) = checked.findings
    assert (found.kind, found.step, found.ranks, found.told) == (Kind.COLLECTIVE, 2, (1,), True)
    assert found.title == f"{op} gave rank 1 another result in step 2"
    assert checked.compared.collectives == 3


OWN = ["c10d.reduce_scatter_", "c10d.alltoall_", "c10d.send", "c10d.recv_"]


@pytest.mark.parametrize("op", OWN)
def test_what_members_get_each_for_itself_is_not_compared(tmp_path, op):
    checked = check(tmp_path, 3, reduced(op, odd=(2, 1)))
    assert checked.findings == ()
    assert checked.outcome == Outcome.UNVERIFIED


def unwaited(last):
    """In step `last` rank 1 still has what it put into the all-reduce."""

    def of(rank, step):
        found = Step(rank, step).begin(world=2)
        if step:
            mine, total = bits("mine", rank, step), bits("sum", step)
            got = mine if (rank, step) == (1, last) else total
            found.add("reduce", "in.0", "0,1", mine, op="c10d.allreduce_")
            found.add("reduce", "mutated.0", "0,1", got, op="c10d.allreduce_")
        return found

    return of


def test_a_result_that_had_not_arrived_when_the_program_broke_off_is_no_finding(tmp_path):
    checked = check(tmp_path, 2, unwaited(3), steps=4)
    assert checked.findings == ()
    assert checked.reasons == (
        "attempt 0: 1 results of collectives differ in the last step, and may not have arrived "
        "when the program ended",
    )


def test_a_result_that_did_not_arrive_in_a_program_that_went_on(tmp_path):
    (found,) = check(tmp_path, 2, unwaited(3), steps=5).findings
    assert (found.kind, found.step) == (Kind.COLLECTIVE, 3)


def test_members_may_be_written_as_a_range(tmp_path):
    checked = check(tmp_path, 3, reduced("c10d.allreduce_", odd=(2, 1), members="0-2"))
    assert [found.ranks for found in checked.findings] == [(1,)]


def gathered(odd=None):
    """An all-gather into a list; `odd`: (rank that gets other bits, whose shard)."""

    def of(rank, step):
        found = Step(rank, step).begin(world=2)
        if step:
            found.add("gather", "in.0", "0,1", bits("shard", rank, step), op="c10d.allgather_")
            for source in (0, 1):
                wrong = odd == (rank, source) and step == 2
                got = bits("shard", source, step) ^ wrong
                found.add("gather", f"out.{source}", "0,1", got, op="c10d.allgather_")
        return found

    return of


def test_a_list_of_shards_is_what_the_members_put_in(tmp_path):
    checked = check(tmp_path, 2, gathered())
    assert checked.outcome == Outcome.SAME
    assert checked.compared.gathered == 3 * 2 * 2


def test_a_shard_that_arrived_otherwise(tmp_path):
    (found,) = check(tmp_path, 2, gathered(odd=(1, 0))).findings
    assert (found.kind, found.step, found.ranks) == (Kind.GATHER, 2, (1,))
    assert (found.told, found.place.slot) == (True, "out.0")
    assert found.title == "c10d.allgather_ gave rank 1 another shard than rank 0 put in, in step 2"


def sharded(stale=None, cast=False):
    """A parameter in two shards, which add up to what the module of each rank computes with;
    `stale` = (step, rank) computes with the bits of the step before."""

    def shard(rank, step):
        return bits("shard", rank, step)

    def of(rank, step):
        found = Step(rank, step).begin("op", world=2)
        place = Box((8,), (4 * rank,), (4,))
        if not step:
            return found.add("start", "param", "Net.a.w", shard(rank, 0), shape=(8,), place=place)
        used = step - 2 if stale == (step, rank) else step - 1
        whole = sum(shard(r, used) for r in (0, 1)) + cast
        found.add("forward", "in.1", "Net.a", whole, op="aten.mm", shape=(8,))
        found.add("forward", "in.0", "Net.a", bits("x", rank, step), op="aten.mm", shape=(8,))
        return found.add(
            "optimizer", "param", "Net.a.w", shard(rank, step), 1, shape=(8,), place=place
        )

    return of


def test_a_gathered_parameter_is_the_sum_of_its_shards(tmp_path):
    checked = check(tmp_path, 2, sharded(), steps=6)
    assert checked.outcome == Outcome.SAME
    assert checked.compared.gathered == 2 * 4


def test_a_rank_that_computes_with_an_old_parameter(tmp_path):
    (found,) = check(tmp_path, 2, sharded(stale=(4, 1)), steps=6).findings
    assert (found.kind, found.step, found.ranks) == (Kind.GATHER, 4, (1,))
    assert (found.place.module, found.place.op, found.place.slot) == ("Net.a", "aten.mm", "in.1")
    assert found.title == (
        "Net.a.w as rank 1 computed with it in step 4 is not what its shards hold"
    )


def test_a_copy_that_another_module_keeps_is_not_the_gathered_parameter(tmp_path):
    healthy = sharded()
    kept = {}

    def of(rank, step):
        found = healthy(rank, step)
        if step:
            # A teacher takes the weights over in every second step.
            now = sum(bits("shard", r, step - 1) for r in (0, 1))
            kept[rank] = kept[rank] if step % 2 else now
            found.add("forward", "in.1", "Teacher.a", kept[rank], op="aten.mm", shape=(8,))
        else:
            kept[rank] = 0
        return found

    assert check(tmp_path, 2, of, steps=9).findings == ()


def test_a_parameter_that_is_cast_when_it_is_gathered_is_not_compared(tmp_path):
    checked = check(tmp_path, 2, sharded(cast=True), steps=6)
    assert checked.findings == ()
    assert checked.compared.gathered == 0
