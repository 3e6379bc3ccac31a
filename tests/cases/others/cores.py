"""Run b has two threads where run a has one."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--run", default="a")
torch.set_num_threads(1 if parser.parse_args().run == "a" else 2)
torch.manual_seed(0)
net = nn.Sequential(nn.LayerNorm(300), nn.Linear(300, 60), nn.SiLU(), nn.Linear(60, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
x = torch.randn(4096, 300)
for _ in range(6):
    optimizer.zero_grad()
    (net(x)[:, 0] - x[:, 0]).square().sum().backward()
    optimizer.step()
