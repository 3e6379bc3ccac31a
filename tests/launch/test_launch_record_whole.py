"""`bitstep record` with the recorder itself: what is in the directory, and what is not harmed."""

import sys

import pytest
from attach_fakes import TRAIN, asked, record, recording

from bitstep.contract.manifest import read_manifest
from bitstep.trace import read_trace

# In place of the small recorder's: the user has none.
REAL = {"PYTHONPATH": ""}


@pytest.fixture
def run(tmp_path):
    """Record a script of that text; gives back the finished process."""

    def run(text, *words, program=(sys.executable,)):
        (tmp_path / "train.py").write_text(text)
        return record(tmp_path, *program, "train.py", words=words, **REAL)

    return run


def rows(directory, slot):
    """(step, digest) of the rows in that slot, of rank 0."""
    records = read_trace(directory / "attempt-000").records(0)
    return [(r.site.step, r.digest) for r in records if r.site.slot == slot]


def test_a_script_is_recorded_whole(tmp_path, run):
    done = run(TRAIN + "train()\ntorch.set_num_threads(1)\n")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("bitstep: run: 1 rank, 3 steps, ")
    assert recording(tmp_path / "run") == {"0/0": [0, 1, 2, 3]}
    assert rows(tmp_path / "run", "level") == [(step, 3) for step in range(4)]
    assert rows(tmp_path / "run", "world") == [(0, 1)]
    (attempt,) = read_manifest(tmp_path / "run")
    # As they were when training began, not as they are at the end or in the launcher.
    assert attempt.manifest.keys["settings.threads.torch"] == 1
    assert attempt.manifest.keys["program.command"][-1] == "train.py"
    assert asked(tmp_path / "run")["options"]["level"] == "op"


def test_a_program_that_ends_with_os_exit_has_its_end_marker(tmp_path, run):
    assert run(TRAIN + "train()\nos._exit(3)\n").returncode == 3
    assert recording(tmp_path / "run") == {"0/0": [0, 1, 2, 3]}


def test_a_forked_child_writes_nothing_to_the_trace_of_its_parent(tmp_path, run):
    text = TRAIN + "train(1)\npid = os.fork()\ntrain(2)\nif pid: os.wait()\nelse: sys.exit()\n"
    done = run(text)
    assert done.returncode == 0, done.stderr
    assert recording(tmp_path / "run") == {"0/0": [0, 1, 2, 3]}


def test_a_forked_child_of_a_parent_that_did_not_train_is_recorded(tmp_path, run):
    text = TRAIN + (
        "import multiprocessing as mp\n"
        "child = mp.get_context('fork').Process(target=train)\nchild.start(); child.join()\n"
        "sys.exit(child.exitcode)\n"
    )
    done = run(text)
    assert done.returncode == 0, done.stderr
    assert recording(tmp_path / "run") == {"0/0": [0, 1, 2, 3]}


def test_a_directory_that_goes_bad_costs_one_line_and_no_training(tmp_path, run):
    text = "import shutil\nshutil.rmtree('run'); open('run', 'w').close()\n" + TRAIN
    done = run(text + "train()\nprint('trained')\n")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    first, last = done.stderr.splitlines()
    assert first.startswith("bitstep: recording stopped: ")
    assert "unverified: no process wrote anything" in last


def test_strict_ends_the_program_when_recording_fails(run):
    text = "import shutil\nshutil.rmtree('run'); open('run', 'w').close()\n" + TRAIN
    done = run(text + "train()\nprint('trained')\n", "--strict")
    assert (done.returncode, done.stdout) == (1, "")


def test_a_disk_that_is_full_costs_one_line_and_no_training(tmp_path, run):
    limited = ("bash", "-c", 'ulimit -f 8; exec "$@"', "-", sys.executable)
    done = run(TRAIN + "train(50)\nprint('trained')\n", program=limited)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    (stopped, end) = done.stderr.splitlines()
    assert stopped.startswith("bitstep: recording stopped: ")
    assert "rank 0 ends with the last whole step of attempt-000" in end
    trace = read_trace(tmp_path / "run/attempt-000")
    assert not trace.complete
    assert 0 in trace.steps


def test_a_control_file_changes_the_level_of_the_named_steps(tmp_path, run):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/control.toml").write_text('level = "module"\nfrom_step = 2\nto_step = 3\n')
    assert run(TRAIN + "train(4)\n", "--level", "step").returncode == 0
    assert rows(tmp_path / "run", "level") == [(0, 0), (1, 0), (2, 2), (3, 0), (4, 0)]


def test_a_kill_leaves_every_whole_step(tmp_path, run):
    done = run(TRAIN + "import signal\ntrain(5)\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert done.returncode == 137
    assert "rank 0 ends with the last whole step of attempt-000" in done.stderr
    steps = sorted(read_trace(tmp_path / "run/attempt-000").steps)
    assert steps[:5] == [0, 1, 2, 3, 4]


def test_a_process_that_never_trains_writes_nothing(tmp_path, run):
    done = run(TRAIN + "with torch.no_grad(): model(torch.ones(1, 2))\n")
    assert done.returncode == 0
    assert not list((tmp_path / "run").glob("attempt-*"))


@pytest.mark.long
def test_two_ranks_that_one_program_spawns(tmp_path, run):
    text = TRAIN + (
        "import torch.distributed as dist, torch.multiprocessing as mp\n"
        "def work(rank, store):\n"
        "    dist.init_process_group('gloo', init_method=store, rank=rank, world_size=2)\n"
        "    torch.nn.parallel.DistributedDataParallel(model)\n"
        "    train(); dist.barrier(); dist.destroy_process_group()\n"
        "if __name__ == '__main__': mp.spawn(work, (f'file://{os.getcwd()}/store',), nprocs=2)\n"
    )
    done = run(text, "--level", "phase")
    assert done.returncode == 0, done.stderr
    assert recording(tmp_path / "run") == {"0/0": [0, 1, 2, 3], "0/1": [0, 1, 2, 3]}
    assert rows(tmp_path / "run", "world") == [(0, 2)]
