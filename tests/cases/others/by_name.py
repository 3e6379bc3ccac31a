"""Branches are registered in the order of a set; run b resumes under another hash seed."""

import argparse
import os
import subprocess
import sys
import tempfile

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--run", default="a")
parser.add_argument("--saved", default="")
args = parser.parse_args()
if args.run == "b":
    saved = tempfile.mktemp(prefix="saved_")
    for part, seed in (("b1", "1"), ("b2", "2")):
        words = [sys.executable, __file__, "--run", part, "--saved", saved]
        subprocess.run(words, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
    os.unlink(saved)
    sys.exit(0)
torch.set_num_threads(1)
torch.manual_seed(8)
made = {name: nn.Conv1d(3, 3, 3, padding=1) for name in ("low", "mid", "high", "skip", "gate")}
net = nn.ModuleDict({name: made[name] for name in set(made)})
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
first, last = 0, (4 if args.run == "b1" else 8)
if args.run == "b2":
    saved = torch.load(args.saved)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
for step in range(first, last):
    x = torch.randn(4, 3, 7, generator=torch.Generator().manual_seed(step))
    y = x
    for name in sorted(net):
        y = torch.tanh(net[name](y))
    optimizer.zero_grad()
    (y - x.flip(2)).square().mean().backward()
    optimizer.step()
if args.run == "b1":
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": last}
    torch.save(state, args.saved)
