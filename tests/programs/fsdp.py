"""FSDP2 on the processes that torchrun starts, with activation checkpointing."""

import sys

import torch
import torch.distributed as dist
from gpt import GPT, loss_of
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = GPT()
for block in model.blocks:
    inner = block.forward
    block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=False)
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
    draw = torch.Generator().manual_seed(2 * step + dist.get_rank())
    loss_of(model, torch.randint(0, 64, (4, 17), generator=draw)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
