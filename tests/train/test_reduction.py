import importlib.util
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from bitstep.errors import LayoutError, RecipeError
from bitstep.faults import Fault
from bitstep.train.layout import Layout, boundaries
from bitstep.train.reduction import Counter, TreeReduceScatter, prepare, take_gradients, tree_sum

WORKER = Path(__file__).with_name("fsdp_worker.py")
_spec = importlib.util.spec_from_file_location("fsdp_worker", WORKER)
worker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(worker)


def leaves_of(count, size=2000):
    return [worker.addend(index)[:size] for index in range(count)]


def copies(tensors):
    return [tensor.clone() for tensor in tensors]


def same(one, other):
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def left_fold(tensors):
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def test_eight_leaves_by_twos_are_a_balanced_tree():
    a, b, c, d, e, f, g, h = leaves = leaves_of(8)
    expected = ((a + b) + (c + d)) + ((e + f) + (g + h))
    assert same(tree_sum(copies(leaves), (2, 2, 2)), expected)
    assert not same(expected, left_fold(leaves))


def test_children_of_a_node_are_added_in_index_order():
    a, b, c, d, e, f = leaves = leaves_of(6)
    assert same(tree_sum(copies(leaves), (3, 2)), ((a + b) + c) + ((d + e) + f))


def test_nineteen_pairs_are_added_from_the_left():
    leaves = leaves_of(38)
    pairs = [leaves[i] + leaves[i + 1] for i in range(0, 38, 2)]
    assert same(tree_sum(copies(leaves), (2, 19)), left_fold(pairs))


def test_one_leaf_keeps_its_bits():
    assert same(tree_sum([torch.tensor([-0.0])], ()), torch.tensor([-0.0]))


def test_leaves_that_do_not_fill_the_tree_are_our_mistake():
    with pytest.raises(AssertionError):
        tree_sum(leaves_of(3), (2,))


@pytest.mark.parametrize("fan_ins", [(2, 2, 2), (3, 2), (2, 19), (2, 3, 2), ()])
def test_low_levels_then_the_counter_are_the_whole_tree(fan_ins):
    leaves = leaves_of(int(np.prod(fan_ins)))
    expected = tree_sum(copies(leaves), fan_ins)
    for processes in boundaries(fan_ins):
        layout = Layout(fan_ins, processes, 0, processes)
        counter = Counter(layout)
        for first in range(0, len(leaves), processes):
            microbatch = tree_sum(copies(leaves[first : first + processes]), layout.across)
            counter.push([microbatch, microbatch.clone()])
        assert all(same(total, expected) for total in counter.result())


@pytest.mark.parametrize("kind", ["left-fold", "stock-reduction"])
def test_the_faults_fold_the_microbatches_from_the_left(kind):
    leaves = leaves_of(8)
    counter = Counter(Layout((2, 2, 2), 1, 0, 1), Fault(kind))
    for leaf in copies(leaves):
        counter.push([leaf])
    assert same(counter.result()[0], left_fold(leaves))


def test_the_counter_holds_one_set_per_level_beside_the_incoming_one():
    counter = Counter(Layout((2,) * 6, 1, 0, 1))
    alive = weakref.WeakSet()
    most = 0
    for leaf in range(64):
        tensor = torch.full((1,), float(leaf))
        alive.add(tensor)
        most = max(most, len(alive))
        counter.push([tensor])
        del tensor
    assert counter.result()[0].item() == 64 * 63 / 2
    assert most == 6 + 1


def test_the_counter_wants_exactly_the_microbatches_of_the_layout():
    counter = Counter(Layout((2,), 1, 0, 1))
    counter.push([torch.ones(1)])
    with pytest.raises(AssertionError, match="fewer"):
        counter.result()
    counter.push([torch.ones(1)])
    with pytest.raises(AssertionError, match="more"):
        counter.push([torch.ones(1)])


def test_no_parameters_are_allowed():
    counter = Counter(Layout((2,), 1, 0, 1))
    counter.push([])
    counter.push([])
    assert counter.result() == []


@pytest.fixture(scope="module")
def one_process():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Layout(worker.FAN_INS, 1, 0, 1)
    dist.destroy_process_group()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_reductions_are_refused(one_process, dtype):
    for policy in (
        MixedPrecisionPolicy(reduce_dtype=dtype),
        MixedPrecisionPolicy(param_dtype=dtype),
    ):
        model = fully_shard(torch.nn.Linear(2, 2), mp_policy=policy)
        name = str(dtype).removeprefix("torch.")
        with pytest.raises(RecipeError, match=f"reduced in {name}: set reduce_dtype to float32"):
            prepare(model, one_process)


def test_narrow_tensors_are_refused_in_the_reduction_too(one_process):
    tensor = torch.zeros(2, dtype=torch.float16)
    with pytest.raises(RecipeError, match="reduced in float16"):
        TreeReduceScatter(one_process)(tensor, tensor, None, dist.ReduceOp.SUM)


def test_narrow_masters_are_refused(one_process):
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    model = fully_shard(torch.nn.Linear(2, 2).bfloat16(), mp_policy=policy)
    with pytest.raises(RecipeError, match="parameter weight is bfloat16: masters are float32"):
        prepare(model, one_process)


def test_replicated_parameters_are_refused(one_process):
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(torch.nn.Linear(2, 2), mesh=mesh)
    with pytest.raises(LayoutError, match=r"parameter weight is on a mesh of 2 .*HSDP"):
        prepare(model, one_process)


def test_parameters_outside_fsdp_are_refused(one_process):
    with pytest.raises(LayoutError, match="parameter weight is in no FSDP2 unit"):
        prepare(torch.nn.Linear(2, 2), one_process)


def test_whole_sums_without_the_tree_are_refused(one_process):
    two = Layout(worker.FAN_INS, 2, 0, 2, whole_sums=True)
    with pytest.raises(LayoutError, match="stock-reduction has no whole sums"):
        prepare(worker.sharded_model(), two, Fault("stock-reduction"))


def test_gradients_are_taken_out_and_an_absent_one_is_zeros(one_process):
    model = worker.sharded_model()
    prepare(model, one_process)
    weight = model.head.weight
    model(torch.ones(worker.TOKENS, worker.WIDTH)).backward()
    held = weight.grad.to_local()
    weight.grad = None
    gradients = take_gradients(model, one_process)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert [g.shape for g in gradients] == [p.shape for p in trained]
    assert all(p.grad is None for p in trained)
    place = [p is weight for p in trained].index(True)
    assert held.abs().sum() > 0
    assert same(gradients[place], torch.zeros_like(held))


def launch(world, folder):
    environment = os.environ | {"WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([sys.executable, WORKER, folder], env=environment | {"RANK": str(rank)})
        for rank in range(world)
    ]
    assert [process.wait(timeout=120) for process in started] == [0] * world
    files = [np.load(folder / f"{rank}.npz") for rank in range(world)]
    return {name: [file[name] for file in files] for name in files[0].files}


def joined(parts_by_name, case):
    """The whole tensors of a case, from the parts of all processes."""
    return {
        name: parts[0] if name.endswith("|norms") else np.concatenate(parts)
        for name, parts in parts_by_name.items()
        if name.startswith(f"{case}|") and not name.endswith("|used")
    }


@pytest.fixture(scope="module")
def trained(one_process, tmp_path_factory):
    """By number of processes, the parts that they ended with: two launches for all tests below."""
    alone = {name: [part] for name, part in worker.flat(worker.run()).items()}
    return {1: alone} | {w: launch(w, tmp_path_factory.mktemp(f"w{w}")) for w in (2, 4)}


def differing(trained, case, processes, reference="float32"):
    expected = joined(trained[1], reference)
    found = joined(trained[processes], case)
    assert len(found) == len(expected) > 20
    return [
        name
        for name, whole in expected.items()
        if whole.tobytes() != found[name.replace(reference, case, 1)].tobytes()
    ]


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("case", ["float32", "bfloat16"])
def test_any_number_of_processes_gives_the_bits_of_one(trained, case, processes):
    assert differing(trained, case, processes, reference=case) == []


def test_two_nodes_give_the_bits_of_one_process(trained):
    assert differing(trained, "two nodes", 4) == []


@pytest.mark.parametrize("processes", [2, 4])
def test_whole_sums_have_the_bits_of_sharded_ones(trained, processes):
    assert differing(trained, "whole sums", processes) == []
    bfloat16 = "whole sums, bfloat16"
    assert differing(trained, bfloat16, processes, reference="bfloat16") == []


def test_whole_sums_on_two_nodes_have_the_same_bits(trained):
    assert differing(trained, "whole sums, two nodes", 4) == []


@pytest.mark.parametrize("fault", ["left-fold", "stock-reduction", "fused-adamw"])
def test_without_its_mechanism_the_bits_depend_on_the_processes(trained, fault):
    assert differing(trained, fault, 4, reference=fault) != []


def test_a_left_fold_is_another_sum_already_with_two_processes(trained):
    assert differing(trained, "left-fold", 2, reference="left-fold") != []


def test_every_process_has_the_same_norms(trained):
    for parts_by_name in trained.values():
        for name, parts in parts_by_name.items():
            if name.endswith("|norms"):
                assert len({part.tobytes() for part in parts}) == 1, name


def test_the_model_had_experts_without_tokens_and_bfloat16_was_another_computation(trained):
    used = trained[1]["float32|used"][0]
    leaves = worker.STEPS * 8
    assert (used[:, -1] == 0).all()
    assert ((used > 0) & (used < leaves)).any()
    assert differing({1: trained[1]}, "bfloat16", 1) != []


@pytest.mark.parametrize(("world", "fan_ins"), [(2, (2,)), (4, (2, 2))])
def test_the_reduce_scatter_sums_in_the_tree(trained, world, fan_ins):
    whole = np.concatenate(trained[world]["sum|sum"])
    assert same(torch.from_numpy(whole), tree_sum(leaves_of(world), fan_ins))


def test_the_two_stage_reduce_scatter_sums_in_the_same_tree(trained):
    whole = np.concatenate(trained[4]["sum two nodes|sum"])
    assert same(torch.from_numpy(whole), tree_sum(leaves_of(4), (2, 2)))
    assert not same(torch.from_numpy(whole), left_fold(leaves_of(4)))
