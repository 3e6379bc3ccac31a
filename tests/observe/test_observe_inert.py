"""A recorded program computes what a bare one does, and is given back as it was."""

import gc
import os
import random
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from recording_fakes import recorded
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from bitstep import observe
from bitstep.fingerprint import fingerprint

LEVELS = ("step", "phase", "module", "op")


class Net(nn.Module):
    """Something of everything: dropout, buffers, recomputation, work in place."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.one = nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.Dropout(0.3))
        self.two = nn.Linear(8, 1)

    def forward(self, x):
        x = checkpoint(self.one, self.norm(x), use_reentrant=False)
        x += 1
        return self.two(x)


def states():
    words = np.random.get_state()[1].tobytes()
    return (random.getstate(), words, torch.get_rng_state().numpy().tobytes())


def bits_of_a_run(workers=0):
    """Bits and random states after every step of a run that draws from everything."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    model, found = Net(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    rows = TensorDataset(torch.randn(12, 3))
    for (batch,) in DataLoader(rows, batch_size=4, shuffle=True, num_workers=workers):
        noise = random.random() + np.random.rand()
        scaler.scale((model(batch) * noise).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
        tensors += [value for state in optimizer.state.values() for value in state.values()]
        found.append(([fingerprint(tensor).sum for tensor in tensors], states()))
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize("rehash", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_bits_and_random_states_are_those_of_a_bare_run(tmp_path, level, rehash):
    bare, kept = bits_of_a_run(), []
    recorded(tmp_path / "run", lambda _: kept.append(bits_of_a_run()), level, rehash=rehash)
    assert kept[0] == bare
    assert bits_of_a_run() == bare


def test_loader_workers_work_as_they_do_without_us(tmp_path):
    bare, kept = bits_of_a_run(workers=2), []
    found = recorded(tmp_path / "run", lambda _: kept.append(bits_of_a_run(workers=2)))
    assert kept[0] == bare
    assert found.gaps() == []
    assert found.complete
    assert len(list((tmp_path / "run").glob("attempt-*"))) == 1
    gc.collect()


@pytest.mark.parametrize("level", LEVELS)
def test_no_collective_is_added(tmp_path, level, monkeypatch):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    count = []

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "c10d" in str(func):
                count.append(str(func))
            return func(*args, **(kwargs or {}))

    def program(_=None):
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            with Counting():
                model(torch.ones(2, 3)).mean().backward()
                optimizer.step()

    try:
        program()
        bare = list(count)
        count.clear()
        recorded(tmp_path / "run", program, level)
    finally:
        dist.destroy_process_group()
    assert count == bare
    assert bare


def owners():
    """Everything of torch that a recorder might change: classes and modules by name."""
    from torch.utils import checkpoint as checkpoints
    from torch.utils.data import dataloader

    return {
        "Optimizer": torch.optim.Optimizer,
        "SGD": torch.optim.SGD,
        "optimizer": sys.modules["torch.optim.optimizer"],
        "autograd": torch.autograd,
        "graph": torch.autograd.graph,
        "Tensor": torch.Tensor,
        "Module": nn.Module,
        "module": torch.nn.modules.module,
        "utils": torch.nn.utils,
        "clip_grad": torch.nn.utils.clip_grad,
        "GradScaler": torch.amp.GradScaler,
        "DataLoader": DataLoader,
        "dataloader": dataloader,
        "iterator": dataloader._BaseDataLoaderIter,
        "checkpoint": checkpoints,
        "frame": checkpoints._CheckpointFrame,
        "function": checkpoints.CheckpointFunction,
        "dist": dist,
        "c10d": dist.distributed_c10d,
        "Work": dist.Work,
        "OptimizedModule": torch._dynamo.eval_frame.OptimizedModule,
        "os": os,
        "sys": sys,
    }


def attributes():
    """Each attribute as it stands, and the contents of what holds hooks."""
    found = {}
    for name, owner in owners().items():
        for key, value in list(vars(owner).items()):
            if callable(value) or issubclass(type(value), dict | staticmethod):
                has_hooks = issubclass(type(value), dict) and "hook" in key
                found[name, key] = (id(value), dict(value) if has_hooks else None)
    found["sys", "meta_path"] = [id(finder) for finder in sys.meta_path]
    found["modes"] = torch._C._len_torch_dispatch_stack()
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_detaching_gives_back_every_attribute(tmp_path, level):
    bits_of_a_run()
    before = attributes()
    with observe.record(tmp_path / "run", level=level) as recorder:
        assert attributes() != before
        bits_of_a_run()
        recorder.detach()
        assert attributes() == before
        recorder.attach()
        assert attributes() != before
    assert attributes() == before


def test_what_somebody_else_has_put_over_ours_stays(tmp_path):
    original = torch.autograd.backward
    with observe.record(tmp_path / "run"):
        ours = torch.autograd.backward

        def theirs(*args, **kwargs):
            return ours(*args, **kwargs)

        torch.autograd.backward = theirs
    try:
        assert torch.autograd.backward is theirs
        model = nn.Linear(1, 1)
        model(torch.ones(1, 1)).sum().backward()
        assert model.weight.grad.item() == 1
    finally:
        torch.autograd.backward = original


def test_hooks_of_the_program_see_what_they_would(tmp_path):
    """The same number of calls in the same order, and no hook of ours on its modules."""

    def program(_=None):
        calls = []
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
        for module in model:
            module.register_forward_hook(lambda m, a, o: calls.append(("forward", tuple(o.shape))))
            module.register_full_backward_hook(
                lambda m, i, o: calls.append(("backward", len(i), tuple(o[0].shape)))
            )
        model[0].weight.register_post_accumulate_grad_hook(lambda p: calls.append("grad"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: calls.append("step"))
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (calls.append(("pack", tuple(t.shape))), t)[1], lambda t: t
        ):
            model(torch.ones(2, 3, requires_grad=True)).mean().backward()
        optimizer.step()
        hooks = [module._forward_hooks for module in model.modules()]
        return calls, [len(table) for table in hooks], list(model.__dict__)

    bare, kept = program(), []
    for level in LEVELS:
        recorded(tmp_path / level, lambda _: kept.append(program()), level)
    assert kept == [bare] * 4


def test_a_model_that_is_pickled_and_copied_has_nothing_of_ours(tmp_path):
    import copy
    import io

    def program(_=None):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 3)).mean().backward()
        optimizer.step()
        model, optimizer = copy.deepcopy((model, optimizer))
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        torch.save(model, other := io.BytesIO())
        return file.getvalue(), b"bitstep" in other.getvalue()

    kept = []
    recorded(tmp_path / "run", lambda _: kept.append(program()))
    assert kept == [program()]
    assert kept[0][1] is False
