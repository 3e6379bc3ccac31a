"""A network of three layers, four steps; with a word it takes its seed from the clock."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(time.time_ns() if len(sys.argv) > 1 else 0)
net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
for _ in range(4):
    loss = net(torch.randn(5, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
