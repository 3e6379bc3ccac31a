"""What 2 gloo processes do for test_observe_collectives.py, and what is seen of it.

Started by `run`, which gives back what each process returned.
"""

import json
import os
import socket
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from bitstep.observe.collectives import describe, results_of
from bitstep.observe.digests import digest_of
from bitstep.observe.pending import Pending
from bitstep.observe.undo import Undo


class Watcher(TorchDispatchMode):
    """The recorder's part in it, as small as it can be."""

    supports_higher_order_operators = True

    def __init__(self):
        super().__init__()
        self.pending, self.undo, self.gaps = Pending(lambda: True), Undo(), []
        self.told, self.ops = [], []

    @classmethod
    def ignore_compile_internals(cls):
        return True

    def __enter__(self):
        self.pending.watch(self.undo, self.gaps.append)
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.undo.all()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        if fake is not None or FakeTensor in types:
            return func(*args, **kwargs)
        if any(kind is not torch.Tensor for kind in types):
            return NotImplemented
        if self.pending.waiting or self.pending.objects:
            return func(*args, **kwargs)
        space = func.namespace
        if space == "profiler":
            return func(*args, **kwargs)
        collective = describe(func, args, kwargs) if "c10d" in space else None
        if collective is not None:
            self.ops.append(f"launch {collective.op}")
            self.told.append(("in", *said(collective), digests(collective.inputs)))
            result = func(*args, **kwargs)
            self.pending.add(results_of(collective, result), result, self.emit)
            return result
        if "wait_tensor" in str(func):
            result = func(*args, **kwargs)
            self.pending.waited_for(args[0])
            return result
        if self.pending.open and not func.is_view:
            self.pending.touched(tensors_of((args, kwargs)))
        self.ops.append(str(func).removesuffix(".default"))
        return func(*args, **kwargs)

    def emit(self, collective):
        self.ops.append(f"tell {collective.op}")
        self.told.append(("out", *said(collective), digests(collective.outputs)))


def said(collective):
    return collective.op, collective.kind, list(collective.members)


def digests(named):
    return [(slot, f"{digest_of(tensor).sum:016x}") for slot, tensor in named]


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)


def digest(tensor):
    return f"{digest_of(tensor.detach()).sum:016x}"


def every_call(rank, watcher):
    """Each collective once; gives back what each said."""
    import torch.distributed._functional_collectives as functional

    x = torch.arange(3.0) + rank
    world = dist.group.WORLD
    one = dist.new_group([1])
    parts = [torch.zeros(3), torch.zeros(3)]
    with watcher:
        dist.all_reduce(x)
        dist.broadcast(x, 1)
        dist.reduce(x, 1)
        dist.all_gather(parts, x)
        dist.gather(x, parts if rank == 0 else None, 0)
        dist.scatter(x, parts if rank == 0 else None, 0)
        dist.all_to_all_single(torch.zeros(4), torch.arange(4.0))
        part = torch.zeros(2)
        dist.distributed_c10d._reduce_scatter_base(part, torch.arange(4.0))
        dist.distributed_c10d._all_gather_base(torch.zeros(6), x)
        dist.barrier()
        if rank == 1:
            dist.all_reduce(x, group=one)
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        other = 1 - rank
        sends = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, parts[0], other)]
        for work in dist.batch_isend_irecv(sends):
            work.wait()
        dist.all_gather_object([None, None], {"rank": rank})
        functional.all_reduce(x, "sum", world) + 1
        functional.all_to_all_single(torch.arange(4.0), None, None, world) + 1
        functional.broadcast(x, 0, world) + 1
    return {"told": watcher.told, "open": len(watcher.pending.open), "gaps": watcher.gaps,
            "ops": watcher.ops, "part": digest(part)}  # fmt: skip


def late_wait(rank, watcher):
    """A result that is waited for after other work; the program's own digest of it."""
    x = torch.arange(1000.0) * (rank + 1)
    y = torch.ones(2)
    with watcher:
        work = dist.all_reduce(x, async_op=True)
        y.add_(1)
        before = len(watcher.told)
        in_flight = watcher.pending.is_in_flight(x[3:5]), watcher.pending.is_in_flight(y)
        work.wait()
        y.add_(1)
    return {"before": before, "ops": watcher.ops, "told": watcher.told, "true": digest(x),
            "in_flight": in_flight}  # fmt: skip


def one_buffer(rank, watcher):
    """Two buckets in one storage: one is on its way while the other is written."""
    storage = torch.zeros(8)
    with watcher:
        work = dist.all_reduce(storage[:4].fill_(rank + 1.0), async_op=True)
        storage[4:].fill_(7)
        between = len(watcher.told)
        work.wait()
    return {"between": between, "told": watcher.told, "true": digest(storage[:4])}


def through_future(rank, watcher):
    """Waited for by its future: told when it is touched."""
    x = torch.arange(4.0)
    with watcher:
        dist.all_reduce(x, async_op=True).get_future().wait()
        told = len(watcher.told)
        x.mul_(2)
    return {"told_before": told, "told": watcher.told, "ops": watcher.ops}


def _ddp(rank, watcher, as_view, hook=False):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    net = DistributedDataParallel(net, gradient_as_bucket_view=as_view)
    if hook:
        net.register_comm_hook(None, default_hooks.allreduce_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    with watcher:
        for _ in range(2):
            loss = net(torch.ones(2, 8) + torch.arange(8) * (rank + 1)).square().sum()
            watcher.told.clear()
            watcher.ops.clear()
            loss.backward()
            watcher.pending.backward_ended()
            left = len(watcher.pending.open)
            optimizer.step()
            grads = {digest(p.grad) for p in net.parameters()}
            optimizer.zero_grad()
    return {"told": watcher.told, "ops": watcher.ops, "left": left, "grads": sorted(grads)}


def ddp(rank, watcher):
    return _ddp(rank, watcher, as_view=False)


def ddp_view(rank, watcher):
    return _ddp(rank, watcher, as_view=True)


def ddp_hook(rank, watcher):
    return _ddp(rank, watcher, as_view=True, hook=True)


def fsdp(rank, watcher):
    """FSDP2, clipped; every told digest must be the same in a second, equal step."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    for module in (net[0], net[2], net):
        fully_shard(module)
    steps = []
    with watcher:
        for _ in range(8):
            watcher.told.clear()
            net(torch.ones(2, 8) * (rank + 1)).square().sum().backward()
            watcher.pending.backward_ended()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0).item()
            for parameter in net.parameters():
                parameter.grad = None
            steps.append(list(watcher.told))
    return {"steps": steps, "open": len(watcher.pending.open)}


SCENES = (
    every_call, late_wait, one_buffer, through_future, ddp, ddp_view, ddp_hook, fsdp,
)  # fmt: skip


def _main(rank, port, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    wait = torch._C._distributed_c10d.Work.wait
    gather = dist.all_gather_object
    found = {}
    try:
        for scene in SCENES:
            found[scene.__name__] = scene(rank, Watcher())
        found["restored"] = (
            torch._C._distributed_c10d.Work.wait is wait and dist.all_gather_object is gather
        )
    except Exception:
        found["error"] = traceback.format_exc()
    (Path(out) / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # gloo may abort when it is taken down


def run(out):
    """Play every scene on 2 processes; what each of them found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_main, (port, str(out)), 2)
    both = [json.loads((Path(out) / f"{rank}.json").read_text()) for rank in (0, 1)]
    for found in both:
        assert "error" not in found, found["error"]
    return both
