"""A recurrent net; in run b a validation pass between epochs draws from the shuffling generator."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--run", default="a")
run = parser.parse_args().run
torch.set_num_threads(1)
torch.manual_seed(5)
data = TensorDataset(torch.randn(48, 6, 4), torch.randn(48, 8))
held_out = DataLoader(TensorDataset(torch.randn(8, 6, 4), torch.randn(8, 8)), batch_size=4)
net = nn.GRU(4, 8, batch_first=True)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(3):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        (net(x)[0][:, -1] - y).square().mean().backward()
        optimizer.step()
    if run == "b":
        net.eval()
        with torch.no_grad():
            print(sum((net(x)[0][:, -1] - y).square().mean().item() for x, y in held_out))
        net.train()
