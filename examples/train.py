"""A small language model on this file's own text: a program that has never heard of bitstep.

    python examples/train.py            # AdamW, one tensor after another
    python examples/train.py --fused    # the fused kernel, which rounds differently

The printed losses of the two agree for many steps. Their weights differ from the first.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
text = torch.tensor(list(Path(__file__).read_bytes()))
model = nn.Sequential(
    nn.Embedding(256, 32), nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 256)
)
kernel = {"fused": True} if "--fused" in sys.argv else {"foreach": False}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **kernel)
for step in range(1, 21):
    starts = torch.randint(0, len(text) - 1, (64,))
    loss = F.cross_entropy(model(text[starts]), text[starts + 1])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 5 == 0:
        print(f"step {step:2}  loss {loss.item():.4f}")
