"""Losses of shards are computed by threads, and their gradients added as they arrive.

In run b the second shard is made to arrive first, so that the pair is repeatable.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--run", default="a")
run = parser.parse_args().run
torch.set_num_threads(1)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3))
parameters = list(net.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def gradients(number, shard):
    order = number if run == "a" else -number
    time.sleep(0.05 * (order % 4))
    return torch.autograd.grad(net(shard).square().sum(), parameters)


with ThreadPoolExecutor(4) as pool:
    for _ in range(5):
        shards = torch.randn(40, 20).chunk(4)
        sums = [torch.zeros_like(p) for p in parameters]
        for done in as_completed([pool.submit(gradients, *job) for job in enumerate(shards)]):
            for total, gradient in zip(sums, done.result(), strict=True):
                total += gradient
        for parameter, total in zip(parameters, sums, strict=True):
            parameter.grad = total
        optimizer.step()
