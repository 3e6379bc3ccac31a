"""Programs that know nothing of a check, recorded as they are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bitstep.check import Check, Kind
from bitstep.records import Outcome

PROGRAM = """
import sys, tempfile, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn

WHAT = sys.argv[1]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.norm, self.high = nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Linear(10, 4)
    def forward(self, x):
        return self.high(torch.relu(self.norm(self.low(x))))

def worker(rank, where):
    dist.init_process_group("gloo", init_method="file://" + where, rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = model = Net()
    if WHAT == "sharded":
        from torch.distributed.fsdp import fully_shard
        for part in (net.low, net.high, net):
            fully_shard(part)
    elif WHAT != "alone":
        model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, 7):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(9 * step + rank))
        loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        if WHAT == "flipped" and rank == 1 and step == 4:
            # Another device wrote: no operation, no version.
            net.low.weight.detach().numpy()[3, 2] *= 1.5
        optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(worker, args=(tempfile.mktemp(),), nprocs=2)
"""


def recorded(tmp_path, what):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "bitstep", "record", "-o", str(tmp_path / what), "--"]
    done = subprocess.run(
        [*command, sys.executable, str(program), what],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Check(tmp_path / what).result()


@pytest.mark.long
def test_a_data_parallel_program_agrees(tmp_path):
    checked = recorded(tmp_path, "parallel")
    assert checked.findings == ()
    assert checked.outcome == Outcome.SAME
    assert checked.compared.replicas > 100
    assert checked.compared.collectives >= 6


@pytest.mark.long
def test_a_sharded_program_agrees(tmp_path):
    checked = recorded(tmp_path, "sharded")
    assert checked.findings == ()
    assert checked.outcome == Outcome.SAME
    assert checked.compared.gathered > 20


@pytest.mark.long
def test_ranks_that_train_alone_cannot_be_told(tmp_path):
    checked = recorded(tmp_path, "alone")
    assert checked.findings == ()
    assert checked.outcome == Outcome.UNVERIFIED


@pytest.mark.long
def test_a_weight_that_is_written_to_on_one_rank(tmp_path):
    checked = recorded(tmp_path, "flipped")
    kinds = {found.kind: found for found in reversed(checked.findings)}
    replicas, written = kinds[Kind.REPLICAS], kinds[Kind.WRITE]
    assert (replicas.step, replicas.ranks, replicas.told) == (4, (0, 1), False)
    assert replicas.place.module == "Net.low.weight"
    assert (written.step, written.ranks, written.place.module) == (4, (1,), "Net.low.weight")
