"""A save is whole or nothing, whatever fails, and on every process."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoint_fakes import VALUES, blank_of, files, run, saved, state_of, whole_tensors

from bitstep.checkpoint import POSITIONS, newest, restore, save, verify
from bitstep.errors import CheckpointError
from bitstep.records import Box
from bitstep.state.streams import Piece, TrainingState

STEP_20 = "step-00000020"


def names(root_dir):
    return sorted(path.name for path in root_dir.iterdir())


def failing_save(root_dir, match, world=2, states=None, step=20):
    tensors = whole_tensors()
    with pytest.raises(CheckpointError, match=match) as error:
        run(
            world,
            lambda p: save(
                root_dir,
                step,
                states[p.rank] if states else state_of(tensors, p.rank, world),
                p,
            ),
        )
    assert "\n" not in str(error.value)


def test_an_equal_state_is_kept_and_not_written_again(tmp_path):
    checkpoint = saved(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in checkpoint.iterdir()}
    assert saved(tmp_path, world=4) == checkpoint
    assert {path: path.stat().st_mtime_ns for path in checkpoint.iterdir()} == before


def test_another_state_of_the_same_step_is_not_written_over(tmp_path):
    checkpoint = saved(tmp_path)
    before = files(checkpoint)
    states = [state_of(whole_tensors(seed=1), rank, 2) for rank in range(2)]
    failing_save(tmp_path, "holds another state", states=states)
    other = {**VALUES, "data": {"position": 161}}
    states = [state_of(whole_tensors(), rank, 2, other) for rank in range(2)]
    failing_save(tmp_path, "holds another state", states=states)
    assert files(checkpoint) == before
    assert names(tmp_path) == [STEP_20]


def test_what_has_no_marker_is_replaced(tmp_path):
    checkpoint = saved(tmp_path)
    (checkpoint / "COMPLETE").unlink()
    (checkpoint / "state.json").write_bytes(b"half")
    assert saved(tmp_path) == checkpoint
    verify(checkpoint)
    assert names(tmp_path) == [STEP_20]


def test_a_damaged_checkpoint_of_the_same_step_is_put_aside_and_written_anew(tmp_path):
    checkpoint = saved(tmp_path)
    path = checkpoint / "rank-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    with pytest.raises(CheckpointError, match="rank-00001"):
        verify(checkpoint)
    saved(tmp_path)
    verify(checkpoint)
    aside = next(path for path in tmp_path.iterdir() if path != checkpoint)
    assert aside.name.startswith(f"damaged-{STEP_20}.")
    assert newest(tmp_path) == (checkpoint, [])


def test_leftovers_of_dead_attempts_are_removed_by_the_next_save(tmp_path):
    (tmp_path / f".{STEP_20}.0badcafe.tmp").mkdir()
    (tmp_path / f".{STEP_20}.0badcafe.tmp" / "rank-00000.safetensors").write_bytes(b"half")
    (tmp_path / "keep.txt").write_bytes(b"mine")
    saved(tmp_path)
    assert names(tmp_path) == ["keep.txt", STEP_20]


def test_positions_are_reported_in_order(tmp_path):
    seen = [[], []]
    run(
        2,
        lambda p: save(
            tmp_path, 20, state_of(whole_tensors(), p.rank, 2), p, progress=seen[p.rank].append
        ),
    )
    assert tuple(seen[0]) == POSITIONS
    assert tuple(seen[1]) == POSITIONS[:2]


# Disagreement between processes.


def test_replicas_that_disagree_are_refused_naming_tensor_and_process(tmp_path):
    states = [state_of(whole_tensors(), rank, 3) for rank in range(3)]
    bias = next(piece for piece in states[2].pieces if piece.stream == "buffers")
    bias.tensor.view(torch.int32)[3] ^= 1
    failing_save(tmp_path, r"buffers/router\.bias: the replica of process 2 .* differs", 3, states)
    assert not tmp_path.joinpath(STEP_20).exists()


def test_replicas_that_differ_in_the_sign_of_zero_disagree(tmp_path):
    whole = Box((2,), (0,), (2,))
    zeros = [torch.tensor([0.0, 0.0]), torch.tensor([0.0, -0.0])]
    states = [TrainingState([Piece("buffers", "b", z, whole, True)], {}) for z in zeros]
    failing_save(tmp_path, "buffers/b: the replica of process 1", 2, states)


def test_values_that_disagree_are_refused(tmp_path):
    states = [
        state_of(whole_tensors(), rank, 2, {**VALUES, "step": {"step": 20 + rank}})
        for rank in range(2)
    ]
    failing_save(tmp_path, 'step: process 0 holds {"step":20} and process 1 {"step":21}', 2, states)


def test_a_tensor_that_one_process_does_not_know_is_refused(tmp_path):
    states = [state_of(whole_tensors(), rank, 2) for rank in range(2)]
    del states[1].pieces[0]
    failing_save(tmp_path, r"parameters/embed\.weight: process 0 and not process 1", 2, states)


def test_a_shard_that_is_lost_or_doubled_is_refused(tmp_path):
    states = [state_of(whole_tensors(), 0, 2) for _ in range(2)]
    failing_save(tmp_path, "overlaps another one", 2, states)
    failing_save(tmp_path, "the parts hold 42 of 78 elements", 1, states)


def test_shards_of_different_dtypes_are_refused(tmp_path):
    tensors = whole_tensors()
    states = [state_of(tensors, 0, 2)]
    tensors["moments", "exp_avg/norm.weight"] = torch.zeros(3, dtype=torch.bfloat16)
    states.append(state_of(tensors, 1, 2))
    failing_save(tmp_path, "dtype is float32 on process 0 and bfloat16 on process 1", 2, states)


def test_a_tensor_that_is_listed_twice_is_refused(tmp_path):
    state = state_of(whole_tensors())
    state.pieces.append(state.pieces[0])
    failing_save(tmp_path, "lists it twice", 1, [state])


def test_a_part_that_does_not_fit_its_place_is_refused(tmp_path):
    place = Box((4,), (0,), (4,))
    state = TrainingState([Piece("parameters", "w", torch.zeros(3), place)], {})
    failing_save(tmp_path, r"parameters/w: the local part has shape \(3,\)", 1, [state])


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), (1, 2), {1: 2}, b"x", {"deep": [0, {"er": -float("inf")}]}, 1j],
)
def test_a_value_that_json_would_change_is_refused(tmp_path, value):
    state = state_of(whole_tensors(), values={"random": {"odd": value}})
    failing_save(tmp_path, r"the value random\.odd", 1, [state])
    assert names(tmp_path) == []


# Disks and folders that fail.


def failing_fsync(monkeypatch, name, code):
    honest = os.fsync

    def fsync(descriptor):
        if name in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(code, os.strerror(code))
        honest(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize(
    "name",
    ["rank-00000.safetensors", "rank-00001.safetensors", "state.json", "index.json", "COMPLETE"],
)
def test_a_full_disk_leaves_the_old_checkpoints_and_no_half_one(tmp_path, monkeypatch, name):
    old = saved(tmp_path, 10)
    before = files(old)
    with monkeypatch.context() as patch:
        failing_fsync(patch, name, errno.ENOSPC)
        failing_save(tmp_path, f"cannot write .*{name}.*: No space left on device")
    assert names(tmp_path) == ["step-00000010"]
    assert files(old) == before
    assert newest(tmp_path) == (old, [])
    verify(saved(tmp_path))


@pytest.mark.parametrize("place", ["tmp", STEP_20, "checkpoints"])
def test_a_folder_that_cannot_be_synced_leaves_nothing(tmp_path, monkeypatch, place):
    root_dir = tmp_path / "checkpoints"
    old = saved(root_dir, 10)
    honest = os.fsync

    def fsync(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(place):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        honest(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        failing_save(root_dir, "Input/output error")
    assert names(root_dir) == ["step-00000010"]
    verify(old)


def test_a_file_size_limit_is_an_error_and_leaves_nothing(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, hard))
    try:
        failing_save(tmp_path, "File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == []


def test_a_root_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    failing_save(tmp_path / "file", "cannot write .*file: File exists")


def test_a_file_system_that_is_not_shared_is_named(tmp_path, monkeypatch):
    honest = Path.is_file
    monkeypatch.setattr(
        Path, "is_file", lambda path: "rank-00001" not in str(path) and honest(path)
    )
    failing_save(tmp_path, r"process 0 does not see .*rank-00001\.safetensors")
    assert names(tmp_path) == []


def test_an_error_of_any_kind_on_one_process_reaches_all(tmp_path):
    def work(processes):
        def progress(position):
            if processes.rank == 1:
                raise ZeroDivisionError("odd")

        save(tmp_path, 20, state_of(whole_tensors(), processes.rank, 2), processes, progress)

    with pytest.raises(RuntimeError, match="process 1: ZeroDivisionError: odd"):
        run(2, work)
    assert names(tmp_path) == []


@pytest.mark.parametrize("position", POSITIONS[:-1])
def test_an_interrupt_leaves_nothing_half(tmp_path, position):
    saved(tmp_path, 10, world=1)

    def interrupt(reached):
        if reached == position:
            raise KeyboardInterrupt

    from checkpoint_fakes import ThreadProcesses

    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 20, state_of(whole_tensors()), ThreadProcesses(0, 1, None), interrupt)
    assert names(tmp_path) == ["step-00000010"]


def test_memory_that_changes_between_fingerprint_and_write_is_found_by_verify(tmp_path):
    state = state_of(whole_tensors())

    def progress(position):
        if position == "write rank file":
            state.pieces[1].tensor.view(torch.int32)[0] ^= 1

    path = run(1, lambda p: save(tmp_path, 20, state, p, progress))[0]
    with pytest.raises(CheckpointError, match=r"rank-00000.*parameters/norm\.weight"):
        verify(path)


# Death.

KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from checkpoint_fakes import ThreadProcesses, state_of, whole_tensors
from bitstep.checkpoint import POSITIONS, save

torch.set_num_threads(1)
alone = ThreadProcesses(0, 1, None)
base = Path(sys.argv[2])

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def progress_kill(position):
    return lambda reached: die() if reached == position else None

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir")

def in_child(folder, work):
    save(folder, 10, state_of(whole_tensors()), alone)
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return os.waitpid(pid, 0)[1] == signal.SIGKILL

def killed_at_event(folder, number):
    left = [number]
    def hook(event, arguments):
        if event in EVENTS:
            left[0] -= 1
            if left[0] < 0:
                die()
    def fsync(descriptor, honest=os.fsync):  # has no audit event of its own
        hook("open", ())
        honest(descriptor)
    def work():
        sys.addaudithook(hook)
        os.fsync = fsync
        save(folder, 20, state_of(whole_tensors(seed=1)), alone)
    return in_child(folder, work)

for position in POSITIONS:
    folder = base / position.replace(" ", "-")
    assert in_child(folder, lambda: save(
        folder, 20, state_of(whole_tensors(seed=1)), alone, progress_kill(position)))
number = 0
while killed_at_event(base / f"event-{number:03d}", number):
    number += 1
print(number)
"""


def test_a_kill_at_any_moment_leaves_the_old_checkpoint_or_the_new_one(tmp_path):
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, here, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    kills = int(done.stdout)
    assert kills >= 20
    outcomes = set()
    for folder in sorted(tmp_path.iterdir()):
        path, skipped = newest(folder)
        complete = (folder / STEP_20 / "COMPLETE").exists()
        assert path == folder / (STEP_20 if complete else "step-00000010")
        assert [where.name for where, _ in skipped] in ([], [STEP_20])
        seed = 1 if complete else 0
        run(1, lambda p, c=path, s=seed: restore(c, blank_of(whole_tensors(seed=s)), p))
        saved(folder, tensors=whole_tensors(seed=1))
        assert names(folder) == ["step-00000010", STEP_20]
        verify(folder / STEP_20)
        outcomes.add((complete, bool(skipped)))
    assert outcomes == {(False, False), (False, True), (True, False)}
    assert len(list(tmp_path.iterdir())) == len(POSITIONS) + kills + 1


def test_everything_is_on_the_disk_before_the_marker_and_the_marker_before_the_end(
    tmp_path, monkeypatch
):
    log = []
    fsync, rename = os.fsync, Path.rename

    def logged_fsync(descriptor):
        log.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name[:4]))
        fsync(descriptor)

    def logged_rename(path, target):
        log.append(("rename", target.name[:4]))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(Path, "rename", logged_rename)
    root_dir = tmp_path / "checkpoints"
    run(1, lambda p: save(root_dir, 20, state_of(whole_tensors()), p))
    assert log == [
        ("sync", tmp_path.name[:4]),
        ("sync", "rank"),
        ("sync", "stat"),
        ("sync", "inde"),
        ("sync", ".ste"),
        ("rename", "step"),
        ("sync", "chec"),
        ("sync", "COMP"),
        ("rename", "COMP"),
        ("sync", "step"),
    ]
