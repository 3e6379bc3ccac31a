"""Two ranks read at different speed; run b resumes both where rank 0 was."""

import argparse
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def worker(rank, run, path, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(2)
    text = torch.randint(0, 30, (400,), generator=torch.Generator().manual_seed(4))
    net = DDP(nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 30)))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    place, first, last = 0, 0, (4 if run == "b1" else 8)
    if run == "b2":
        saved = torch.load(path)
        net.module.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        place, first = saved["place"], saved["step"]
    for _ in range(first, last):
        length = 6 + 4 * rank
        ids = text[rank * 200 + place :][: length + 1]
        place += length
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(ids[:-1]), ids[1:]).backward()
        optimizer.step()
    if rank == 0 and run == "b1":
        state = {"net": net.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "place": place, "step": last}, path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", default="a")
    parser.add_argument("--saved", default="")
    args = parser.parse_args()
    if args.run == "b":
        saved = tempfile.mktemp(prefix="saved_")
        for part in ("b1", "b2"):
            words = [sys.executable, __file__, "--run", part, "--saved", saved]
            subprocess.run(words, check=True)
        os.unlink(saved)
        sys.exit(0)
    mp.spawn(worker, args=(args.run, args.saved, tempfile.mktemp(prefix="meet_")), nprocs=2)
