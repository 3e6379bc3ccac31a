"""The first steps of real programs: stopped after them, whatever they are made of."""

import os
import sys
import time
from pathlib import Path

import pytest

from bitstep.errors import RunError, UsageError
from bitstep.launch import first_steps
from bitstep.launch.first_steps import run_first_steps
from bitstep.trace.run import read_run

LOOP = """
import sys, torch
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("stepped", step, flush=True)
open(sys.argv[2], "w").close()
"""

GROUP = """
import os, sys, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def work(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1000):
        model(torch.ones(3, 4)).sum().backward()
        if rank == 1:
            time.sleep(0.5)
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    open(sys.argv[1] + "/parent", "w").write(str(os.getpid()))
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""


def steps_of(first):
    (attempt,) = read_run(first.run)
    return sorted(attempt.trace.steps)


def is_alive(pid):
    """Whether it runs: one that has ended and that nobody collects does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def program(tmp_path):
    """Write a program, and run its first two steps."""

    def run(text, *words, timeout=120.0, **named):
        file = tmp_path / "program.py"
        file.write_text(text)
        command = [sys.executable, str(file), *map(str, words)]
        return run_first_steps(command, tmp_path / "look", steps=2, timeout=timeout, **named)

    return run


def test_a_loop_is_stopped_when_its_third_step_begins(program, tmp_path):
    first = program(LOOP, 1000, tmp_path / "end")
    assert (first.exit, first.timed_out, first.stopped, first.world) == (None, False, (0,), 1)
    assert (tmp_path / "look" / "stdout").read_text() == "stepped 0\nstepped 1\n"
    assert not (tmp_path / "end").exists()
    assert steps_of(first) == [0, 1, 2]
    assert read_run(first.run)[0].damage == ()
    (note,) = first.notes
    assert note["chose threads"]
    assert note["flags"]["end"]["threads"] == 1


def test_a_program_that_ends_earlier_ends_by_itself(program, tmp_path):
    first = program(LOOP, 1, tmp_path / "end")
    assert (first.exit, first.stopped, first.world) == (0, (), 1)
    assert steps_of(first) == [0, 1]
    assert (tmp_path / "end").exists()


def test_a_program_that_never_trains_leaves_no_note(program):
    first = program("print('no torch here')")
    assert (first.exit, first.notes, first.world) == (0, (), 0)


def test_a_program_that_fails_is_told_with_its_last_words(program):
    first = program("raise SystemExit('lost the corpus')")
    assert (first.exit, first.last_lines) == (1, ("lost the corpus",))


def test_a_program_that_takes_too_long_is_ended_with_its_children(program, tmp_path):
    sleeping = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " start_new_session=True)\n"
        "pathlib.Path(sys.argv[1]).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    first = program(sleeping, tmp_path / "pid", timeout=4.0)
    assert (first.exit, first.timed_out) == (None, True)
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_folder_of_each_run_takes_the_place_of_its_word(program, tmp_path):
    first = program("import sys; open(sys.argv[1] + '/here', 'w').close()", "{run}")
    assert first.exit == 0
    assert (tmp_path / "look" / "work" / "here").exists()


def test_variables_are_added_and_nothing_of_ours_is_left_in_this_process(program):
    before = dict(os.environ)
    text = "import os; raise SystemExit(os.environ['ADDED'])"
    assert program(text, variables={"ADDED": "word"}).last_lines == ("word",)
    assert dict(os.environ) == before


def test_a_command_that_is_none_and_a_folder_with_a_recording_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no such command"):
        run_first_steps(["no-such-command"], tmp_path / "a", steps=2, timeout=9.0)
    run_first_steps(["true"], tmp_path / "b", steps=2, timeout=9.0)
    with pytest.raises(RunError, match="holds a recording"):
        run_first_steps(["true"], tmp_path / "b", steps=2, timeout=9.0)


@pytest.mark.long
def test_spawned_ranks_wait_for_each_other_and_nothing_is_left_of_them(program, tmp_path):
    first = program(GROUP, tmp_path)
    assert (first.exit, first.stopped, first.world) == (None, (0, 1), 2)
    assert steps_of(first) == [0, 1, 2]
    assert read_run(first.run)[0].damage == ()
    assert not is_alive(int((tmp_path / "parent").read_text()))


@pytest.mark.long
def test_a_rank_that_hangs_in_its_second_step_is_not_waited_for_without_end(
    program, tmp_path, monkeypatch
):
    monkeypatch.setattr(first_steps, "GRACE", 3.0)
    hanging = GROUP.replace("time.sleep(0.5)", "time.sleep(900 if step == 1 else 0)")
    began = time.monotonic()
    first = program(hanging, tmp_path)
    assert (first.exit, first.stopped, first.timed_out) == (None, (0,), False)
    assert time.monotonic() - began < 100
    assert not is_alive(int((tmp_path / "parent").read_text()))
