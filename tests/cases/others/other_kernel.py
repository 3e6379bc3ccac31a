"""In run b Adam is fused: the same formula, rounded in another order."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--run", default="a")
run = parser.parse_args().run
torch.set_num_threads(1)
torch.manual_seed(0)
net = nn.Sequential(nn.Conv1d(2, 5, 3), nn.SiLU(), nn.Flatten(), nn.Linear(30, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=run == "b")
for _ in range(10):
    x = torch.randn(6, 2, 8)
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
