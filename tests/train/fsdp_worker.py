"""One of W processes that train a small FSDP2 model; the parts it ends with go to a file.

Started by test_reduction.py with RANK and WORLD_SIZE: fsdp_worker.py FOLDER. In process with W = 1
the test calls `run` itself. The model has what breaks layouts: widths that no W divides, an empty
shard (5 router rows on 4 processes), experts without a token, one that is never used, a frozen
parameter, recomputation.
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from bitstep.faults import Fault
from bitstep.state.processes import Processes
from bitstep.train.layout import Layout
from bitstep.train.norm import clip_, exact_norm
from bitstep.train.optimizer import AdamW
from bitstep.train.recipe import OptimizerConfig
from bitstep.train.reduction import (
    Counter,
    TreeReduceScatter,
    prepare,
    spread,
    take_gradients,
)

FAN_INS = (2, 2, 2)
WIDTH, TOKENS, EXPERTS, STEPS = 19, 6, 5, 3
CASES = {
    "float32": {},
    "bfloat16": {"compute": torch.bfloat16, "recompute": True},
    "left-fold": {"fault": Fault("left-fold")},
    "stock-reduction": {"fault": Fault("stock-reduction")},
    "fused-adamw": {"fault": Fault("fused-adamw")},
    "two nodes": {"nodes": 2},
    "whole sums": {"whole": True},
    "whole sums, bfloat16": {"whole": True, "compute": torch.bfloat16, "recompute": True},
    "whole sums, two nodes": {"whole": True, "nodes": 2},
}


class Block(nn.Module):
    def __init__(self, recompute):
        super().__init__()
        self.recompute = recompute
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 37), nn.Linear(37, WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.used = [0] * EXPERTS

    def forward(self, x):  # [TOKENS, WIDTH]
        if self.recompute:
            return checkpoint(self.body, x, use_reentrant=False)
        return self.body(x)

    def body(self, x):
        x = x + self.down(self.up(self.norm(x)).relu())
        scores, chosen = self.router(x)[:, :-1].max(dim=-1)
        parts = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            mine = (chosen == index).nonzero().flatten()
            if mine.numel():
                self.used[index] += 1
                parts = parts.index_add(0, mine, expert(x[mine]))
        return x + parts * scores.sigmoid()[:, None]


class Model(nn.Module):
    def __init__(self, recompute):
        super().__init__()
        self.blocks = nn.ModuleList(Block(recompute) for _ in range(2))
        self.head = nn.Linear(WIDTH, 33)
        self.frozen = nn.Parameter(torch.ones(WIDTH), requires_grad=False)

    def forward(self, x):
        x = x * self.frozen
        for block in self.blocks:
            x = block(x)
        return self.head(x).float().logsumexp(dim=-1).mean()


def sharded_model(compute=torch.float32, recompute=False):
    torch.manual_seed(5)
    model = Model(recompute)
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for unit in [*model.blocks, model]:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    return model


def layout_of(nodes=1, whole=False):
    world = dist.get_world_size()
    return Layout(FAN_INS, world, dist.get_rank(), world // nodes, whole)


def train(compute=torch.float32, recompute=False, fault=None, nodes=1, whole=False):
    """Three steps of the engine's arithmetic; local parts of masters, moments, and the norms."""
    model, layout = sharded_model(compute, recompute), layout_of(nodes, whole)
    tree = prepare(model, layout, fault)
    trained = {n: p.detach().to_local() for n, p in model.named_parameters() if p.requires_grad}
    fused = fault is not None and fault.kind == "fused-adamw"
    optimizer = AdamW(trained, OptimizerConfig(clip=0.5), decayed=set(trained), fused=fused)
    processes = Processes(layout.process, layout.processes)
    norms = []
    for step in range(1, STEPS + 1):
        counter = Counter(layout, fault)
        for leaf in layout.leaves():
            generator = torch.Generator().manual_seed(1000 * step + leaf)
            x = torch.randn(TOKENS, WIDTH, generator=generator).to(compute)
            (model(x) / layout.logical_ranks).backward()
            counter.push(take_gradients(model, layout))
        gradients = spread(counter.result(), model, layout, tree)
        norms.append(exact_norm(gradients, processes))
        clip_(gradients, norms[-1], 0.5)
        optimizer.step(gradients, lr=0.02, update=step)
    parts = {f"masters/{name}": part for name, part in trained.items()}
    for kind, tensors in optimizer.moments().items():
        parts |= {f"{kind}/{name}": part for name, part in tensors.items()}
    parts["norms"] = torch.tensor(norms, dtype=torch.float64)
    parts["used"] = torch.tensor([block.used for block in model.blocks])
    return {name: part.numpy() for name, part in parts.items()}


def summed(nodes):
    """This process's part of a sum over the processes, by the custom reduce-scatter alone."""
    layout = layout_of(nodes)
    sent, part = addend(layout.process), torch.empty(addend(0).numel() // layout.processes)
    tree = TreeReduceScatter(layout)
    tree(part, sent, dist.group.WORLD, dist.ReduceOp.SUM)
    return {"sum": part.numpy()}


def addend(process):
    """What a process adds to the sum: numbers of very different sizes, so that order shows."""
    generator = torch.Generator().manual_seed(process)
    numbers = torch.randn(2, 2000, generator=generator, dtype=torch.float64)
    return (numbers[0] * torch.exp2(numbers[1] * 6)).float()


def run():
    """Every case that this number of processes allows."""
    several_nodes = dist.get_world_size() == 4
    results = {
        name: train(**case)
        for name, case in CASES.items()
        if several_nodes or case.get("nodes", 1) == 1
    }
    if dist.get_world_size() > 1:
        results["sum"] = summed(nodes=1)
    if several_nodes:
        results["sum two nodes"] = summed(nodes=2)
    return results


def flat(results):
    """The parts of all cases under "case|name"."""
    return {f"{case}|{name}": part for case in results for name, part in results[case].items()}


def main(folder):
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    results = run()
    named = {
        f"{case}|{name}": part for case, parts in results.items() for name, part in parts.items()
    }
    np.savez(folder / f"{rank}.npz", **named)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo sometimes aborts in destroy_process_group or at a normal exit.


if __name__ == "__main__":
    main(Path(sys.argv[1]))
