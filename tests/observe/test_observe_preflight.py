"""What is noted inside of a program that a doctor looks at; in processes of their own: it stays."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

LINTS = """
import json, sys, types
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch._subclasses import FakeTensorMode
from bitstep.observe.lints import Lints

class Plain(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

class Knows(Plain):
    @classmethod
    def ignore_compile_internals(cls):
        return True

lints = Lints()
model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
recorder = types.SimpleNamespace(engine=lambda: types.SimpleNamespace(
    names=types.SimpleNamespace(roots=lambda: iter([("Sequential", model)]))))
lints.watch()
quiet = lints.found(recorder)
before = torch.get_num_threads()
nn.Linear(2, 2).register_forward_hook(lambda *_: None)  # nothing is compiled yet
for mode in (Plain(), Knows(), FakeTensorMode(), FlopCounterMode(display=False)):
    with mode:
        torch.ones(2) + 1
sys.modules["torch._dynamo.utils"] = types.SimpleNamespace(
    counters={"stats": {"unique_graphs": 2}})
model[0].register_forward_pre_hook(lambda *_: None)
model[1].register_full_backward_hook(lambda *_: None)
torch.set_num_threads(before)
JITFunction = type("JITFunction", (), {})
sys.modules["triton.runtime.jit"] = types.SimpleNamespace(JITFunction=JITFunction)
kernels = [JITFunction(), JITFunction()]
for kernel, name, home in zip(kernels, ("scale", "theirs"), ("__main__", "torch._inductor.x")):
    kernel.__name__, kernel.__module__ = name, home
flat = torch.zeros(20)
model[0].weight.data = flat[1:10].view(3, 3)
print(json.dumps([quiet, lints.found(recorder)]))
"""

FLAGS = """
import sys, types
from pathlib import Path
import torch
from torch import nn
from bitstep.observe import preflight

class Recorder:
    def __init__(self): self.closed = 0
    def level_of(self, step): return 3
    def close(self): self.closed += 1
    def engine(self):
        return types.SimpleNamespace(names=types.SimpleNamespace(roots=lambda: iter(())))

recorder = Recorder()
preflight.start(recorder, Path(sys.argv[1]), steps=2)
nn.Linear(2, 2)
torch.use_deterministic_algorithms(True)
import os
os.environ["MKL_CBWR"] = "COMPATIBLE"
assert [recorder.level_of(step) for step in (0, 0, 1, 2)] == [3, 3, 3, 3]
Path(sys.argv[1], "leave").touch()
recorder.level_of(3)
raise SystemExit("it was not stopped")
"""


def run(program, *words, **named):
    return subprocess.run([sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True,
                          text=True, **named)  # fmt: skip


def test_what_leaves_no_row_is_noted_and_what_is_harmless_is_not():
    done = run(LINTS)
    quiet, found = json.loads(done.stdout)
    nothing = {name: value for name, value in quiet.items() if value not in ([], 0, False)}
    assert nothing == {}
    assert found["modes"] == ["__main__.Plain", "torch.utils.flop_counter._FlopCounterMode"]
    assert found["compiled"] == 2
    assert found["late hooks"] == ["Linear"]
    assert found["chose threads"] is True
    assert found["full backward hooks"] == ["Sequential.1"]
    assert found["unaligned"] == ["Sequential.0.weight"]
    assert found["graph replays"] == 0
    assert found["triton"] == ["scale"]


def test_flags_are_noted_at_four_moments_and_the_process_leaves_after_its_last_step(tmp_path):
    done = run(FLAGS, str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    (file,) = tmp_path.glob("*.json")
    note = json.loads(file.read_text())
    on = {moment: flags["deterministic"] for moment, flags in note["flags"].items()}
    assert on == {"import": False, "first parameter": False, "first step": True, "end": True}
    assert (note["stopped"], note["rank"], note["world"]) == (True, 0, 1)
    assert note["late variables"] == ["MKL_CBWR"]
    verdicts = {rule["name"]: rule["verdict"] for rule in note["rules"]}
    assert verdicts["torch.use_deterministic_algorithms"] == "held"
