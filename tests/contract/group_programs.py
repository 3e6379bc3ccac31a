"""Programs for worlds of real gloo processes: python group_programs.py NAME WORLD FOLDER.

torch is imported once and the ranks are forked from there. Each leaves FOLDER/RANK.json. `in_world`
is what a test calls.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

SIZES = (1 << 10, 1 << 16, 1 << 20)


def in_world(world, name, seconds=200):
    """What the program gave on each rank."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, name, str(world), folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_SHOW_CPP_STACKTRACES": "0"}
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
        files = [Path(folder) / f"{rank}.json" for rank in range(world)]
        assert all(file.exists() for file in files), done.stderr
        return [json.loads(file.read_text()) for file in files]


def signature():
    """Measured twice: the table, whether both were equal, the orders, and each result's bits."""
    from bitstep.contract.summation_measure import measure

    first = measure(sizes=SIZES)
    began = time.perf_counter()
    second = measure(sizes=SIZES)
    milliseconds = 1000 * (time.perf_counter() - began)
    return {
        "plain": first.plain(),
        "repeats": first == second,
        "milliseconds": milliseconds,
        "as_decoded": [_is_as_decoded(sums) for sums in first.sums],
    }


def _is_as_decoded(sums):
    """Whether the group adds other values up to the bits that the decoded order gives."""
    import torch
    import torch.distributed as dist

    world = dist.get_world_size()
    leaves = [_noise(rank, sums.elements) for rank in range(world)]
    total = leaves[dist.get_rank()].clone()
    if sums.op == "all_reduce":
        dist.all_reduce(total)
    else:
        part = torch.empty(sums.elements // world)
        dist.reduce_scatter_single(part, total)
        dist.all_gather_single(total, part)
    return bool(torch.equal(total, simulated(leaves, sums.runs)))


def simulated(leaves, runs):
    """The sum of the leaves in the orders of the runs."""
    import torch

    parts = []
    for start, end, order, _ in runs:
        formula = re.sub(r"\d+", lambda rank: f"leaves[{rank[0]}][start:end]", order)
        parts.append(eval(formula, {"leaves": leaves, "start": start, "end": end}))
    return torch.cat(parts)


def _noise(rank, elements):
    import torch

    generator = torch.Generator().manual_seed(rank)
    return torch.randn(elements, generator=generator)


def followed():
    """Groups of a mesh and others, in a program that knows nothing of it."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from bitstep.contract.groups import process_groups
    from bitstep.contract.groups_follow import follow_groups

    before = dist.new_group
    undo = follow_groups()
    _open()
    init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    state = torch.get_rng_state()
    dist.new_group([3, 1])
    dist.new_group([3, 1], sort_ranks=False)
    undo()
    unmeasured = dist.new_group([0, 2, 3])
    sums = None
    if dist.get_rank() in (0, 2, 3):
        sums = torch.ones(3)
        dist.all_reduce(sums, group=unmeasured)
        sums = sums.tolist()
    return {
        "groups": process_groups(),
        "given_back": dist.new_group is before,
        "drew": not torch.equal(state, torch.get_rng_state()),
        "sums": sums,
    }


def awkward():
    """A rank that does not come, one that cannot, and a measurement that fails: all can go on."""
    import torch
    import torch.distributed as dist

    from bitstep.contract import summation_measure
    from bitstep.contract.groups import measure_group, process_groups
    from bitstep.errors import ContractError

    def refuses(group):
        raise ContractError("no device")

    def fails(ranks, rank):
        raise TypeError("no probes")

    if dist.get_rank() != 1:
        measure_group(dist.group.WORLD, seconds=0.5)
    group = dist.new_group([0, 1, 2, 3])
    honest, asked = summation_measure.device_of, summation_measure.probes
    if dist.get_rank() == 2:
        summation_measure.device_of = refuses
    vetoed = measure_group(group, seconds=60)
    summation_measure.device_of = honest
    summation_measure.probes = fails
    failed = measure_group(group, seconds=60)
    summation_measure.probes, added = asked, summation_measure._added

    def other_bits(*of):
        result = added(*of)
        result[-1, -1] += dist.get_rank() == 3
        return result

    summation_measure._added = other_bits
    disagreed = measure_group(group, seconds=60)
    total = torch.full((7,), float(dist.get_rank()))
    dist.all_reduce(total)
    return {
        "without_hooks": process_groups(0)["0-3"]["measured"],
        "vetoed": vetoed.problem,
        "failed": failed.problem,
        "disagreed": disagreed.plain()["measured"],
        "total": total.tolist(),
    }


def ddp():
    """DDP runs that differ in how gradients are summed: what is predicted, then their bits."""
    import torch.distributed as dist

    from bitstep.contract.summation import other_order, predict
    from bitstep.contract.summation_measure import measure

    world = dist.get_world_size()
    turned = dist.new_group(list(reversed(range(world))), sort_ranks=False)
    arms = {"one bucket": _arm(25), "again": _arm(25), "small buckets": _arm(0.01)}
    arms["turned group"] = _arm(25, turned)
    plans = {name: _plan(model) for name, model in arms.items()}
    lengths = {length for plan in plans.values() for length in plan}
    signatures = {
        name: measure(model.process_group, sorted(4 * length for length in lengths))
        for name, model in arms.items()
    }
    first = signatures["one bucket"]
    said = {name: predict(first, signatures[name]).verdict for name in arms}
    moved = {name: other_order(first, plans["one bucket"], plans[name]) for name in arms}
    predicted = {name: said[name] == "same" and moved[name] == 0 for name in arms}
    rank_order = replaced(first, "((0+1)+2)+3")
    false = {name: other_order(rank_order, plans["one bucket"], plans[name]) == 0 for name in arms}
    # Nothing was trained before this line.
    bits = {name: _trained(model) for name, model in arms.items()}
    return {
        "plans": plans,
        "moved": moved,
        "predicted": predicted,
        "predicted_by_a_false_signature": false,
        "same_bits": {name: bits[name] == bits["one bucket"] for name in arms},
    }


def replaced(signature, order):
    """The signature with another order, for every element of every sum."""
    from bitstep.contract.summation_runs import Run

    sums = [replace(sums, runs=(Run(0, sums.elements, order, ""),)) for sums in signature.sums]
    return replace(signature, sums=tuple(sums))


def _arm(cap, group=None):
    import torch
    from torch import nn

    torch.manual_seed(1)
    layers = [nn.Linear(48, 48, bias=False) for _ in range(6)]
    model = nn.Sequential(*layers)
    # Buckets are else made anew after the first iteration.
    return nn.parallel.DistributedDataParallel(
        model, process_group=group, bucket_cap_mb=cap, find_unused_parameters=True
    )


def _plan(model):
    """Elements of each bucket, in the order in which the gradients lie in them."""
    text = model._get_ddp_logging_data()["bucket_sizes"]
    return [int(size) // 4 for size in str(text).split(",")]


def _trained(model):
    import torch
    import torch.distributed as dist

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        inputs = torch.randn(16, 48, generator=generator)
        optimizer.zero_grad()
        (model(inputs) - inputs).square().mean().backward()
        optimizer.step()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


OPENS_ITSELF = ("followed",)


def _open():
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=os.environ["MEET"],
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )


def _main(name, world, folder):
    import torch
    import torch.distributed  # before the fork, and not once per rank

    torch.set_num_threads(1)
    os.environ |= {"MEET": f"file://{folder}/store", "WORLD_SIZE": str(world)}
    children = []
    for rank in range(world):
        if (child := os.fork()) == 0:
            os.environ["RANK"] = str(rank)
            if name not in OPENS_ITSELF:
                _open()
            answer = globals()[name]()
            (Path(folder) / f"{rank}.part").write_text(json.dumps(answer))
            os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}.json")
            # Nobody leaves while another still talks to it; then without tearing the group down.
            while len(list(Path(folder).glob("*.json"))) < world:
                time.sleep(0.01)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
