"""A convolutional net under DDP; in run b a bit of a bias on rank 0 flips through raw memory."""

import argparse
import ctypes
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def worker(rank, run, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(3)
    net = DDP(nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(8):
        draw = torch.Generator().manual_seed(10 * step + rank)
        x = torch.randn(5, 2, 8, generator=draw)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        if run == "b" and rank == 0 and step == 4:
            # No operation and no version counter: as a failing memory cell would.
            word = ctypes.c_uint32.from_address(net.module[0].bias.data_ptr() + 4)
            word.value ^= 1 << 20
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", default="a")
    run = parser.parse_args().run
    mp.spawn(worker, args=(run, tempfile.mktemp(prefix="meet_")), nprocs=2)
