"""A temperature that adapts hangs on the model as a plain tensor; run b resumes without it."""

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
    for part in ("b1", "b2"):
        words = [sys.executable, __file__, "--run", part, "--saved", saved]
        subprocess.run(words, check=True)
    os.unlink(saved)
    sys.exit(0)


class Softened(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(10, 4)
        self.value = nn.Linear(10, 4)
        self.temperature = torch.ones(())

    def forward(self, x):
        weight = torch.softmax(self.score(x) / self.temperature, dim=-1)
        return (weight * self.value(x)).sum(-1)


torch.set_num_threads(1)
torch.manual_seed(1)
net = Softened()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
first, last = 0, (5 if args.run == "b1" else 10)
if args.run == "b2":
    saved = torch.load(args.saved)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
for step in range(first, last):
    x = torch.randn(12, 10, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    (net(x) - x[:, 0]).square().mean().backward()
    optimizer.step()
    net.temperature *= 0.9
if args.run == "b1":
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": last}
    torch.save(state, args.saved)
