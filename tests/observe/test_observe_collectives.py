"""Collectives: inputs before the launch, results when they may be read, on real processes."""

import types

import collectives_program as program
import pytest
import torch
import torch.distributed as dist

from bitstep.observe.collectives import Collective, describe, results_of
from bitstep.observe.pending import Pending
from bitstep.observe.undo import Undo

BOTH = [0, 1]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return program.run(tmp_path_factory.mktemp("ranks"))


def told(ranks, scene, what, op):
    """What each rank told of one op: kind, members and digests of its first call."""
    return [
        next(row[2:] for row in found[scene]["told"] if row[:2] == [what, op]) for found in ranks
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("c10d.allreduce_", "reduce"),
        ("c10d.broadcast_", "gather"),
        ("c10d.allgather_", "gather"),
        ("c10d._allgather_base_", "gather"),
        ("_c10d_functional.all_reduce", "reduce"),
        ("_c10d_functional.broadcast", "gather"),
    ],
)
def test_all_members_tell_the_same_result(ranks, op, kind):
    first, second = told(ranks, "every_call", "out", op)
    assert first == second
    assert first[:2] == [kind, BOTH]


@pytest.mark.long
@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("c10d._reduce_scatter_base_", "reduce"),
        ("c10d.scatter_", "exchange"),
        ("c10d.alltoall_base_", "exchange"),
        ("_c10d_functional.all_to_all_single", "exchange"),
    ],
)
def test_each_member_tells_its_own_part(ranks, op, kind):
    first, second = told(ranks, "every_call", "out", op)
    assert first[:2] == second[:2] == [kind, BOTH]
    assert first[2] != second[2]


@pytest.mark.long
def test_what_gloo_does_inside_of_a_wait_is_part_of_the_collective(ranks):
    for rank, (_, _, digests) in enumerate(
        told(ranks, "every_call", "out", "c10d._reduce_scatter_base_")
    ):
        assert digests == [["out.0", ranks[rank]["every_call"]["part"]]]
        assert "aten.copy_" not in ranks[rank]["every_call"]["ops"]


@pytest.mark.long
def test_only_the_root_of_a_broadcast_gives_and_only_that_of_a_reduce_gets(ranks):
    given = told(ranks, "every_call", "in", "c10d.broadcast_")
    assert [len(row[2]) for row in given] == [0, 1]
    outputs = [
        [row[1] for row in found["every_call"]["told"] if row[0] == "out"] for found in ranks
    ]
    assert ["c10d.reduce_" in ops for ops in outputs] == [False, True]
    assert ["c10d.gather_" in ops for ops in outputs] == [True, False]


@pytest.mark.long
def test_sender_and_receiver_name_the_same_pair_and_the_same_bits(ranks):
    sent = told(ranks, "every_call", "in", "c10d.send")[0]
    got = told(ranks, "every_call", "out", "c10d.recv_")[1]
    assert sent[:2] == got[:2] == ["exchange", [0, 1]]
    assert sent[2][0][1] == got[2][0][1]


@pytest.mark.long
def test_members_are_global_ranks_also_of_a_smaller_group(ranks):
    rows = [row for row in ranks[1]["every_call"]["told"] if row[1] == "c10d.allreduce_"]
    assert [row[3] for row in rows] == [BOTH, BOTH, [1], [1]]


@pytest.mark.long
def test_no_pickle_and_no_barrier_is_told(ranks):
    for found in ranks:
        names = [row[1] for row in found["every_call"]["told"]]
        assert names.count("c10d.allgather_") == 2
        assert "c10d.barrier" not in names
        assert found["every_call"]["open"] == 0
        assert found["every_call"]["gaps"] == []


@pytest.mark.long
def test_a_result_is_told_at_its_wait_and_not_before(ranks):
    for found in ranks:
        late = found["late_wait"]
        assert late["before"] == 1
        assert late["ops"][-2:] == ["tell c10d.allreduce_", "aten.add_.Tensor"]
        assert late["told"][-1][-1] == [["mutated.0", late["true"]]]
        assert late["in_flight"] == [True, False]


@pytest.mark.long
def test_a_write_beside_a_result_in_the_same_storage_does_not_tell_it(ranks):
    for found in ranks:
        assert found["one_buffer"]["between"] == 1
        assert found["one_buffer"]["told"][-1][-1] == [["mutated.0", found["one_buffer"]["true"]]]


@pytest.mark.long
def test_a_result_that_no_wait_of_ours_sees_is_told_before_it_is_touched(ranks):
    for found in ranks:
        future = found["through_future"]
        assert future["told_before"] == 1
        assert future["ops"] == [
            "launch c10d.allreduce_",
            "tell c10d.allreduce_",
            "aten.mul_.Tensor",
        ]


@pytest.mark.long
@pytest.mark.parametrize("scene", ["ddp", "ddp_view", "ddp_hook"])
def test_what_the_reducer_of_ddp_got_is_told_on_both_ranks(ranks, scene):
    first, second = (found[scene] for found in ranks)
    assert [row[:2] for row in first["told"]] == [
        ["in", "c10d.allreduce_"],
        ["out", "c10d.allreduce_"],
    ]
    assert first["told"][1] == second["told"][1]
    assert first["told"][0] != second["told"][0]
    assert first["grads"] == second["grads"]


@pytest.mark.long
def test_the_reducer_is_told_by_the_end_of_backward_also_if_nothing_reads_the_bucket(ranks):
    assert [found[scene]["left"] for found in ranks for scene in ("ddp", "ddp_view")] == [0] * 4


@pytest.mark.long
def test_equal_fsdp2_steps_tell_equal_digests(ranks):
    for found in ranks:
        steps = found["fsdp"]["steps"]
        assert steps[1:] == steps[:-1]
        assert found["fsdp"]["open"] == 0
        assert {row[1] for row in steps[0]} == {
            "c10d._allgather_base_",
            "c10d._reduce_scatter_base_",
            "_c10d_functional.all_reduce",
        }


@pytest.mark.long
def test_undo_puts_the_true_wait_back(ranks):
    assert [found["restored"] for found in ranks] == [True, True]


# -- in this process -------------------------------------------------------------------------


@pytest.fixture
def pending(monkeypatch):
    boxed = types.SimpleNamespace(unbox=lambda work: work)
    monkeypatch.setattr(torch._C._distributed_c10d, "Work", boxed)
    return Pending(lambda: True)


def launched(pending, tensor, told, op="c10d.allreduce_", inputs=(), slot="mutated.0"):
    work = object()
    collective = Collective(op, "reduce", (0,), inputs, ((slot, tensor),))
    pending.add(collective, ([tensor], work), lambda found: told.append(found.op))
    return work


def test_results_are_told_once_and_in_launch_order(pending):
    told, x = [], torch.zeros(4)
    first = launched(pending, x[:2], told, op="first")
    launched(pending, x[2:], told, op="second")
    pending.touched([x])
    pending.waited(first)
    assert told == ["first", "second"]


def test_two_pending_results_are_compared_without_looking_at_their_elements(pending):
    told = []
    works = [launched(pending, torch.zeros(3), told, op=str(at)) for at in range(3)]
    pending.waited(works[1])
    assert told == ["1"]
    assert len(pending.open) == 2


def test_a_functional_result_is_told_by_its_own_wait_alone(pending):
    told, x = [], torch.zeros(4)
    collective = Collective("_c10d_functional.all_reduce", "reduce", (0,), (), (("out.0", x),))
    pending.add(collective, x, lambda found: told.append(found.op))
    pending.touched([x])
    assert (told, pending.is_in_flight(x)) == ([], True)
    pending.waited_for(x)
    assert (told, pending.is_in_flight(x)) == (["_c10d_functional.all_reduce"], False)


def test_reading_the_own_part_of_a_gather_does_not_tell_it(pending):
    told, whole = [], torch.zeros(8)
    own = whole[:4]
    launched(pending, whole, told, inputs=(("in.0", own),), slot="out.0")
    pending.touched([own])
    assert told == []
    pending.touched([whole[2:6]])
    assert told == ["c10d.allreduce_"]


def test_the_end_of_backward_does_not_tell_what_the_program_will_wait_for(pending):
    told = []
    launched(pending, torch.zeros(4), told)
    pending.backward_ended()
    assert told == []
    assert pending.drop() == ["c10d.allreduce_"]
    assert pending.open == []


def test_a_strided_tensor_touches_what_lies_between_its_elements(pending):
    told, x = [], torch.zeros(4, 4)
    launched(pending, x[1], told)
    pending.touched([x[2:, 0]])
    assert told == []
    pending.touched([x[:, 0]])
    assert told == ["c10d.allreduce_"]


def test_nothing_without_outputs_is_kept(pending):
    pending.add(Collective("c10d.send", "exchange", (0, 1), (), ()), object(), print)
    assert pending.open == []


@pytest.fixture
def alone(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_an_unknown_collective_is_taken_to_write_what_it_is_given(alone):
    name = types.SimpleNamespace
    schema = name(
        name="c10d::brand_new_", arguments=[name(name="tensors"), name(name="process_group")]
    )
    x = torch.ones(2)
    found = describe(name(_schema=schema), ([x], alone.boxed()), {})
    assert found.kind == "exchange"
    assert found.members == (0,)
    assert (found.inputs[0][0], found.outputs[0][0]) == ("in.0", "mutated.0")


def test_results_of_a_functional_collective_are_its_outputs(alone):
    x, y = torch.ones(2), torch.ones(2)
    func = torch.ops._c10d_functional.all_reduce.default
    found = describe(func, (x, "sum", alone.group_name), {})
    assert found.outputs == ()
    assert results_of(found, y).outputs == (("out.0", y),)


def test_wait_on_a_process_group_is_heard_and_put_back(alone):
    pending, undo, gaps, depths = Pending(lambda: True), Undo(), [], []
    wait = torch._C._distributed_c10d.Work.wait
    pending.watch(undo, gaps.append)
    original = pending.waited
    pending.waited = lambda work: depths.append((pending.waiting, original(work)))
    dist.all_reduce(torch.ones(2))
    undo.all()
    assert depths == [(0, None)]
    assert gaps == []
    assert torch._C._distributed_c10d.Work.wait is wait
