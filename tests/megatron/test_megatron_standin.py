"""The stand-in gives a CPU where a GPU is asked for, and its sitecustomize hides no other.

1. Each claim runs in a Python of its own: the stand-in stays for the rest of a process.
2. `bootstrap` on PYTHONPATH installs it as torch is imported; the next sitecustomize runs as well,
   and a recorder attaches.

    OMP_NUM_THREADS=1 pytest -q tests/megatron/test_megatron_standin.py
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

CLAIMS = """
import torch

tensor = torch.ones(2, device="cuda")
assert tensor.device.type == "cpu"
assert tensor.to("cuda:1").device.type == tensor.to(torch.device("cuda")).device.type == "cpu"
assert tensor.type() == "torch.cuda.FloatTensor"
assert tensor.cuda() is tensor
assert not torch.empty(2, pin_memory=True).is_pinned()
assert tensor.double().dtype is tensor.to(torch.float64).dtype is torch.float64

state = torch.cuda.get_rng_state()
assert torch.equal(state, torch.get_rng_state())
first = torch.rand(2, device="cuda")
torch.cuda.set_rng_state(state)
assert torch.equal(torch.rand(2), first)
torch.cuda.manual_seed(7)
assert torch.initial_seed() == 7

stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    stream.wait_stream(torch.cuda.current_stream())
assert torch.cuda.Event(enable_timing=True).query()
torch.cuda.synchronize()
assert torch.cuda.memory_allocated() == 0
assert not torch.cuda.is_initialized()
print("as claimed")
"""


def python(code, *path, prefix=()):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [*prefix, sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )


def test_what_is_asked_of_a_gpu_the_cpu_answers():
    done = python("import standin; standin.install()" + CLAIMS, HERE)
    assert (done.stdout, done.stderr) == ("as claimed\n", "")


def test_without_the_stand_in_the_same_claims_fail():
    assert python(CLAIMS, HERE).returncode != 0


def test_sitecustomize_installs_it_and_runs_the_one_that_it_hides(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('another')\n")
    done = python(CLAIMS, HERE / "bootstrap", tmp_path)
    assert (done.stdout, done.stderr) == ("another\nas claimed\n", "")


def test_a_python_that_imports_no_torch_is_left_alone():
    code = "import sys; print('torch' in sys.modules, 'standin' in sys.modules)"
    assert python(code, HERE / "bootstrap").stdout == "False False\n"


def test_a_recorder_attaches_to_the_torch_that_has_it(tmp_path):
    record = (sys.executable, "-m", "bitstep", "-q", "record", "-o", str(tmp_path / "run"), "--")
    done = python(CLAIMS, HERE / "bootstrap", prefix=record)
    assert done.stdout == "as claimed\n"
    assert list((tmp_path / "run").iterdir())
