"""A program of four layers, a recorder of twenty lines, and ways to arm this process."""

import hashlib
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bitstep.faults.armed import Armed
from bitstep.faults.calls import describe, reads, written
from bitstep.faults.environment import Order
from bitstep.faults.flip import parse_flips


class FakeRecorder(TorchDispatchMode):
    """Remembers the bytes of what each call takes and writes, as a recorder sees them."""

    def __init__(self, works=False):
        super().__init__()
        self.rows = []
        self.works = works

    @classmethod
    def ignore_compile_internals(cls):
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        info = describe(func)
        before = [(s, bits(t)) for s, t in reads(info, args, kwargs or {})]
        if self.works and info.op == "aten.gelu":
            func(torch.ones(3))  # a call of its own, of the same operation
        result = func(*args, **(kwargs or {}))
        after = [(s, bits(t)) for s, t in written(info, args, kwargs or {}, result)]
        # Nobody has written what empty gives, and of a view nothing is read or written.
        after = [] if info.op.startswith("aten.empty") else after
        self.rows.append((info.op, before, after))
        return result


def bits(tensor):
    return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()[:12]


@contextmanager
def armed(text="none", folder=None, calls=False):
    """Arm this process; everything is as it was afterwards."""
    order = Order(parse_flips(text), folder, calls)
    found = Armed(order)
    try:
        yield found
    finally:
        found.disarm()


def layers():
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))


def train(steps=3, make=layers):
    """The bytes of the parameters after each step."""
    torch.manual_seed(0)
    net = make()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    states = []
    for _ in range(steps):
        loss = net(torch.randn(5, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        states.append([bits(parameter) for parameter in net.parameters()])
    return states
