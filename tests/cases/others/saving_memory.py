"""In run b blocks are checkpointed, reentrantly, and draw other dropout when they run again."""

import argparse

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--run", default="a")
run = parser.parse_args().run
torch.set_num_threads(1)
torch.manual_seed(0)
blocks = nn.ModuleList(
    nn.Sequential(nn.Linear(12, 12), nn.SiLU(), nn.Dropout(0.4)) for _ in range(2)
)
optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(8, 12, generator=torch.Generator().manual_seed(step)).requires_grad_()
    torch.manual_seed(900 + step)
    y = x
    for block in blocks:
        if run == "b":
            y = checkpoint(block, y, use_reentrant=True, preserve_rng_state=False)
        else:
            y = block(y)
    optimizer.zero_grad()
    y.square().mean().backward()
    optimizer.step()
