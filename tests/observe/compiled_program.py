"""A compiled model with a graph break and a buffer, trained for three steps, in one process.

python compiled_program.py bare|watched
"""

import hashlib
import json
import sys
import warnings

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from bitstep.observe import dynamo
from bitstep.observe.compiled import Regions
from bitstep.observe.digests import digest_of
from bitstep.observe.undo import Undo


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls.add_(1)
        return self.linear(x).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x) + 1


class Mode(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, regions):
        super().__init__()
        self.regions, self.outside, self.inside = regions, [], []

    @classmethod
    def ignore_compile_internals(cls):
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        (self.inside if self.regions.inside else self.outside).append(str(func))
        return func(*args, **(kwargs or {}))


def watched(undo, gaps):
    seen = []

    def slots(tensors):
        return None if tensors is None else [(at, f"{digest_of(t).sum:016x}") for at, t in tensors]

    def ends(region, given, mutated, outputs):
        seen.append([*region, given, slots(mutated), slots(outputs)])

    regions = Regions(lambda region, inputs: slots(inputs), ends, lambda: True)
    regions.watch(undo, gaps.append)

    roots = []

    @dynamo.uncompiled
    def before(module, args):
        if torch.compiler.is_compiling() or dynamo.is_wrapper(module):
            return
        roots.append(type(module).__name__)

    # As those of the recorder: their names are what tells them from the program's.
    before.__module__ = "bitstep.observe.modules"
    undo.handle(register_module_forward_pre_hook(before))
    dynamo.stay_quiet(undo)
    return regions, seen, roots


def main(arm):
    warnings.filterwarnings("error", message="Using `torch.compile")
    before_import = "torch._inductor.output_code" in sys.modules
    undo, gaps = Undo(), []
    regions, seen, roots = watched(undo, gaps) if arm == "watched" else (None, [], [])
    at_attach = "torch._inductor.output_code" in sys.modules
    torch.manual_seed(0)
    net = Net()
    call = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    mode = Mode(regions) if regions else None
    if mode:
        mode.__enter__()
    for step in range(3):
        call(torch.full((4, 8), 0.5 + step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if mode:
        mode.__exit__(None, None, None)

    from torch._dynamo.utils import counters

    graphs = counters["stats"]["unique_graphs"]
    extern = counters["inductor"]["extern_calls"]
    state = b"".join(t.detach().numpy().tobytes() for t in net.state_dict().values())
    undo.all()
    last = len(seen)
    call(torch.ones(4, 8)).sum().backward()

    from torch._inductor.output_code import CompiledFxGraph

    print(
        json.dumps(
            {
                "bits": hashlib.sha256(state).hexdigest(),
                "graphs": graphs,
                "extern": extern,
                "hits": counters["aot_autograd"]["autograd_cache_hit"],
                "imported_early": [before_import, at_attach],
                "roots": roots,
                "gaps": gaps,
                "seen": seen,
                "after_undo": len(seen) - last,
                "inside": mode.inside if mode else [],
                "outside": sorted(set(mode.outside)) if mode else [],
                "restored": [
                    CompiledFxGraph.__call__.__module__,
                    CompiledFxGraph.post_compile.__module__,
                    torch.nn.modules.module._has_any_global_hook.__module__,
                    any("observe" in type(f).__module__ for f in sys.meta_path),
                ],
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
