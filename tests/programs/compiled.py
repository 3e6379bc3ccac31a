"""A compiled GPT: forward and backward run in regions that torch.compile made."""

import sys

import torch
from gpt import GPT, loss_of

torch.set_num_threads(1)
torch.manual_seed(0)
model = GPT()
run = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
    loss = loss_of(run, torch.randint(0, 64, (4, 17)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.9g}")
