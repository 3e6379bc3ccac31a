"""Schedules of torch on 2 gloo processes, and what `Pipelines` tells of them."""

import contextlib
import hashlib
import json
import os
import socket
import sys
import traceback
import warnings
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bitstep.observe.digests import digest_of
from bitstep.observe.pipelines import Pipelines
from bitstep.observe.undo import Undo

MICROBATCHES = 4
STEPS = 2
SCHEDULES = {
    "ScheduleGPipe": 1,
    "Schedule1F1B": 1,
    "ScheduleInterleaved1F1B": 2,
    "ScheduleInterleavedZeroBubble": 2,
    "ScheduleZBVZeroBubble": 2,
}


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.linear(x)).relu()


class Watcher(TorchDispatchMode):
    """Notes what is told, with the operations and forwards that run meanwhile."""

    def __init__(self):
        super().__init__()
        self.undo, self.gaps = Undo(), []
        self.pipelines = Pipelines(self.asleep, self.chunk, self.stage_made, lambda: True)
        self.sleeping, self.slept, self.now = 0, 0, (-1, None)
        self.stages, self.forwards, self.sent, self.ops = {}, [], [], Counter()

    @contextlib.contextmanager
    def asleep(self):
        self.sleeping += 1
        yield
        self.sleeping -= 1

    @contextlib.contextmanager
    def chunk(self, microbatch, pass_):
        before, self.now = self.now, (microbatch, pass_)
        yield
        self.now = before

    def stage_made(self, module, index):
        self.stages[id(module)] = index

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.sleeping:
            return func(*args, **(kwargs or {}))
        name = str(func).removesuffix(".default")
        if name == "c10d.send":
            microbatch = self.pipelines.microbatch_of(args[0][0])
            self.sent.append(("send", microbatch, f"{digest_of(args[0][0]).sum:016x}"))
        if name == "c10d.recv_":
            self.sent.append(("recv", self.pipelines.microbatch_of(args[0][0]), ""))
        if name in ("aten.mm", "aten.pow.Tensor_Scalar"):
            self.ops[json.dumps(self.now)] += 1
        return func(*args, **(kwargs or {}))

    def before(self, module, args):
        if isinstance(module, Stage):
            if self.sleeping:
                self.slept += 1
            else:
                found = digest_of(args[0].detach()).sum
                self.forwards.append((self.stages[id(module)], *self.now, f"{found:016x}"))


def train(rank, name, per_rank, watcher):
    from torch.distributed.pipelining import PipelineStage, schedules

    torch.manual_seed(rank)
    v_shaped = [[0, 3], [1, 2]] if name == "ScheduleZBVZeroBubble" else [[0, 2], [1, 3]]
    indices = [rank] if per_rank == 1 else v_shaped[rank]
    stages = [PipelineStage(Stage(), i, 2 * per_rank, torch.device("cpu")) for i in indices]
    schedule = getattr(schedules, name)(
        stages[0] if per_rank == 1 else stages,
        MICROBATCHES,
        loss_fn=lambda output, target: (output - target).square().sum(),
    )
    last = 2 * per_rank - 1 in indices
    steps = []
    for step in range(STEPS):
        inputs = (batch(step),) if 0 in indices else ()
        schedule.step(*inputs, **({"target": torch.zeros(8, 8), "losses": []} if last else {}))
        if watcher is not None:
            steps.append([list(watcher.forwards), list(watcher.sent), dict(watcher.ops)])
            watcher.forwards.clear(), watcher.sent.clear(), watcher.ops.clear()
    gradients = b"".join(p.grad.numpy().tobytes() for s in stages for p in s.submod.parameters())
    return hashlib.sha256(gradients).hexdigest(), steps


def batch(step):
    return torch.arange(64.0).reshape(8, 8) / 64 + step


def watched(rank, name, per_rank):
    watcher = Watcher()
    watcher.pipelines.watch(watcher.undo, watcher.gaps.append)
    hook = nn.modules.module.register_module_forward_pre_hook(watcher.before)
    with watcher:
        bits, steps = train(rank, name, per_rank, watcher)
    hook.remove()
    watcher.undo.all()
    return {"bits": bits, "steps": steps, "slept": watcher.slept, "gaps": watcher.gaps}


def _main(rank, port, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    early = "torch.distributed.pipelining.stage" in sys.modules
    found = {}
    try:
        for name, per_rank in SCHEDULES.items():
            found[name] = watched(rank, name, per_rank)
            found[name]["bare"] = train(rank, name, per_rank, None)[0]
        from torch.distributed.pipelining import schedules, stage

        methods = [*vars(stage._PipelineStageBase).values()]
        methods += [*vars(schedules._PipelineSchedule).values()]
        found["wrapped"] = sum(hasattr(method, "__wrapped__") for method in methods)
        found["early"] = early
    except Exception:
        found["error"] = traceback.format_exc()
    (Path(out) / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # gloo may abort when it is taken down


def run(out):
    """Every schedule, watched and bare, on 2 processes; what each of them found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_main, (port, str(out)), 2)
    both = [json.loads((Path(out) / f"{rank}.json").read_text()) for rank in (0, 1)]
    for found in both:
        assert "error" not in found, found["error"]
    return both
