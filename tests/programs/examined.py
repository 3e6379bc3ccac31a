"""A small program with every kind of state, which saves all of it, or all but one stream.

--leave-out NAME keeps NAME out of its checkpoint; --resume goes on from it.
"""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STREAMS = ("model", "bias", "moments", "schedule", "scaler", "random", "data", "seen")

parser = argparse.ArgumentParser()
parser.add_argument("path")
parser.add_argument("--leave-out", choices=STREAMS)
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        return torch.randn(8, generator=torch.Generator().manual_seed(at))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.25)
        self.outer = nn.Linear(8, 8)
        self.bias = torch.zeros(8)

    def forward(self, x):
        hidden = self.drop(self.inner(x)) + self.bias
        self.bias = 0.5 * self.bias + 0.5 * hidden.detach().mean(0)
        return self.outer(hidden)


class Trainer:
    def __init__(self):
        self.seen = 0
        self.net = Net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda at: 0.9**at)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=3000.0)
        order = torch.Generator().manual_seed(3)
        self.loader = DataLoader(Rows(), batch_size=4, shuffle=True, generator=order)
        self.batches = 0

    def step(self, batch):
        noise = 1.0 / (1 + self.seen)
        loss = (self.net(batch) - batch).pow(2).mean() + noise * self.net.outer.bias.sum()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.seen += len(batch)
        self.batches += 1

    def state(self):
        found = {
            "model": self.net.state_dict(),
            "bias": self.net.bias,
            "moments": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": torch.get_rng_state(),
            "data": {"batches": self.batches, "epochs": 1},
            "seen": self.seen,
        }
        return {name: value for name, value in found.items() if name != args.leave_out}

    def restore(self, state):
        self.net.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["moments"])
        self.schedule.load_state_dict(state["schedule"])
        self.scaler.load_state_dict(state["scaler"])
        self.net.bias = state.get("bias", self.net.bias)
        self.seen = state.get("seen", 0)
        self.batches = state["data"]["batches"]


torch.set_num_threads(1)
torch.manual_seed(0)
random.seed(0)
trainer = Trainer()
stream = iter(trainer.loader)
if args.resume:
    trainer.restore(torch.load(args.path))
    for _ in range(trainer.batches):
        next(stream)
for _ in range(args.steps):
    trainer.step(next(stream))
torch.save(trainer.state(), args.path)
