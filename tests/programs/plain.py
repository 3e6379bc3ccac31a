"""A plain loop: DataLoader, accumulation over two microbatches, clipping, a schedule."""

import sys

import torch
from gpt import GPT, loss_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)
data = TensorDataset(torch.randint(0, 64, (8 * steps, 17)))
for number, (ids,) in enumerate(DataLoader(data, batch_size=4, shuffle=True)):
    (loss_of(model, ids) / 2).backward()
    if number % 2:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
