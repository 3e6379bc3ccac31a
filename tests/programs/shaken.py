"""A small program whose bits follow what should not matter: workers, string hashing, entropy."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, at):
        return at + torch.rand(4)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        for name in {"query", "key", "value", "out", "gate", "norm"}:
            self.add_module(name, nn.Linear(4, 4))

    def forward(self, x):
        return sum(getattr(self, name)(x) for name in sorted(self._modules))


torch.set_num_threads(1)
torch.manual_seed(0)
model = Mixer()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
draws = np.random.default_rng()
for batch in DataLoader(Augmented(), batch_size=8):
    loss = model(batch).pow(2).mean() * float(draws.random() + np.random.rand())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
