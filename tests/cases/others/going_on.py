"""A convolutional net with dropout; run b makes its loader after it restored its state."""

import argparse
import os
import subprocess
import sys
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

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
torch.set_num_threads(1)
torch.manual_seed(7)
data = TensorDataset(torch.randn(40, 1, 12, generator=torch.Generator().manual_seed(1)))
net = nn.Sequential(nn.Conv1d(1, 4, 3), nn.Dropout(0.3), nn.Flatten(), nn.Linear(40, 12))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.8)
first, last = 0, (4 if args.run == "b1" else 9)
if args.run == "b2":
    saved = torch.load(args.saved)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
    torch.set_rng_state(saved["random"])
batches = iter(DataLoader(Subset(data, range(4 * first, 40)), batch_size=4))
for _ in range(first, last):
    (x,) = next(batches)
    optimizer.zero_grad()
    (net(x) - x[:, 0]).square().mean().backward()
    optimizer.step()
if args.run == "b1":
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": last}
    torch.save({**state, "random": torch.get_rng_state()}, args.saved)
