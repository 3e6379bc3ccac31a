"""Real processes on gloo, and a laptop without torch."""

import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_fakes import VALUES, blank_of, contents, run, saved, state_of, whole_tensors

from bitstep.checkpoint import restore, verify

HERE = str(Path(__file__).parent)

GLOO = """
import os, sys
from pathlib import Path
rank, base = int(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, sys.argv[3])
import torch, torch.distributed as dist
from checkpoint_fakes import blank_of, contents, state_of, whole_tensors
from bitstep.checkpoint import restore, save
from bitstep.errors import CheckpointError
from bitstep.state.processes import Processes

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{base}/meet", rank=rank, world_size=2)
processes = Processes(rank=rank, world=2)
tensors = whole_tensors()
path = save(base / "ours", 20, state_of(tensors, rank, 2), processes)
state = blank_of(tensors, rank, 2)
ours = restore(path, state, processes)
assert contents(state) == contents(state_of(tensors, rank, 2))
state = blank_of(tensors, rank, 2)
theirs = restore(base / "theirs" / "step-00000020", state, processes)
assert contents(state) == contents(state_of(tensors, rank, 2))
assert (ours.root, ours.world, theirs.world) == (theirs.root, 2, 3)
replica = state_of(tensors, rank, 2)
replica.pieces[-1].tensor[0] += rank
try:
    save(base / "ours", 30, replica, processes)
except CheckpointError as error:
    print(error, flush=True)
os._exit(0)  # gloo sometimes aborts at exit, after all work is done
"""


def test_two_gloo_processes_save_and_restore_what_others_wrote_and_read(tmp_path):
    saved(tmp_path / "theirs", world=3)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", GLOO, str(rank), str(tmp_path), HERE],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    done = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], done
    assert done[0][0] == done[1][0]
    assert done[0][0].startswith("buffers/router.bias: the replica of process 1")
    checkpoint = tmp_path / "ours" / "step-00000020"
    assert verify(checkpoint).root == verify(tmp_path / "theirs" / "step-00000020").root
    state = blank_of(whole_tensors())
    run(1, lambda p: restore(checkpoint, state, p))
    assert contents(state) == contents(state_of(whole_tensors()))


@pytest.mark.parametrize("absent", [["torch", "safetensors"], ["torch", "safetensors", "numba"]])
def test_verify_show_newest_and_prune_work_without_torch(tmp_path, absent):
    saved(tmp_path, 10)
    root = verify(saved(tmp_path, 20)).root
    script = f"""
import sys
from pathlib import Path
for name in {absent}:
    sys.modules[name] = None
from bitstep.checkpoint import newest, prune, show, verify
root_dir = Path({str(tmp_path)!r})
path, skipped = newest(root_dir)
print(path.name, f"{{verify(path).root:016x}}", len(show(path)), len(prune(root_dir, 1)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["step-00000020", f"{root:016x}", str(5 + len(VALUES)), "1"], done
