import os
import subprocess
import sys
import types

import pytest

from bitstep.errors import RunError
from bitstep.launch.environment import apply, environment
from bitstep.launch.torchrun import is_worker


@pytest.fixture
def clean(monkeypatch):
    for name in environment(1):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    return monkeypatch


def test_threads_of_the_recipe_are_the_threads_of_every_library():
    values = environment(threads=3)
    assert (values["OMP_NUM_THREADS"], values["MKL_NUM_THREADS"]) == ("3", "3")
    assert (values["MKL_DYNAMIC"], values["OMP_DYNAMIC"]) == ("FALSE", "FALSE")


def test_the_recipe_wins_over_the_shell(clean):
    clean.setenv("OMP_NUM_THREADS", "64")
    clean.delitem(sys.modules, "torch", raising=False)
    apply(threads=2)
    assert {name: os.environ[name] for name in environment(2)} == environment(2)


def test_too_late_is_an_error_that_says_what_to_set(clean):
    clean.setitem(sys.modules, "torch", types.ModuleType("torch"))
    with pytest.raises(RunError) as caught:
        apply(threads=1)
    assert str(caught.value) == (
        "torch was imported before the environment was set: start with "
        "CUBLAS_WORKSPACE_CONFIG=:4096:8 MKL_DYNAMIC=FALSE MKL_NUM_THREADS=1 NCCL_ALGO=Ring "
        "OMP_DYNAMIC=FALSE OMP_NUM_THREADS=1"
    )
    assert "OMP_NUM_THREADS" not in os.environ


def test_torch_with_the_right_environment_is_no_error(clean):
    clean.setitem(sys.modules, "torch", types.ModuleType("torch"))
    for name, value in environment(1).items():
        clean.setenv(name, value)
    apply(threads=1)


SETTLE = """
import torch
from bitstep.launch.worker import join, settle
settle(threads=2)
settle(threads=2)
assert torch.are_deterministic_algorithms_enabled()
assert not torch.is_deterministic_algorithms_warn_only_enabled()
assert torch.utils.deterministic.fill_uninitialized_memory is False
assert (torch.get_num_threads(), torch.get_num_interop_threads()) == (2, 1)
assert torch.get_float32_matmul_precision() == "highest"
assert not torch.backends.cudnn.allow_tf32
assert not torch.backends.cuda.matmul.allow_tf32
try:
    torch.nn.MaxUnpool1d(2)(torch.ones(1, 1, 2), torch.zeros(1, 1, 2, dtype=torch.int64))
except RuntimeError as error:
    assert "deterministic" in str(error)
else:
    raise AssertionError("an operation without a deterministic path ran")
processes = join()
assert (processes.rank, processes.world, processes.local_world) == (0, 1, 1)
print("settled")
"""


def test_a_worker_settles_torch_and_makes_a_group_of_one():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SETTLE], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr, done.returncode) == ("settled\n", "", 0)


def test_a_rank_without_a_world_is_no_worker(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert not is_worker()
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert is_worker()


TOO_MANY = """
import torch
from bitstep.errors import RunError
from bitstep.launch.worker import settle

def refuse(threads):
    raise RuntimeError("no thread to be had\\nException raised from a long way down")

torch.set_num_threads = refuse
try:
    settle(threads=9)
except RunError as error:
    print(error)
"""


def test_threads_that_torch_refuses_are_one_line():
    done = subprocess.run(
        [sys.executable, "-c", TOO_MANY], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr) == (
        "layout.threads = 9: torch refuses (no thread to be had); set fewer\n",
        "",
    )
