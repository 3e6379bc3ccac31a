"""What is not, byte for byte, what was saved is refused by name, and nothing of it is loaded."""

import os
import random
import shutil
import threading

import pytest
import torch
from checkpoint_fakes import (
    VALUES,
    blank_of,
    contents,
    files,
    refused,
    run,
    saved,
    state_of,
    whole_tensors,
)

import bitstep.checkpoint.load as load
from bitstep.checkpoint import newest, restore, save, verify
from bitstep.errors import CheckpointError
from bitstep.records import Box
from bitstep.state.streams import Piece

NAMES = [
    "COMPLETE",
    "index.json",
    "rank-00000.safetensors",
    "rank-00001.safetensors",
    "state.json",
]


def test_300_corruptions_uniform_over_all_bytes_are_all_refused_by_name(tmp_path):
    checkpoint = saved(tmp_path)
    whole = files(checkpoint)
    places = [(name, at) for name, content in whole.items() for at in range(len(content))]
    draw = random.Random(300)
    hit = set()
    for name, at in draw.choices(places, k=300):
        damaged = bytearray(whole[name])
        damaged[at] ^= draw.randrange(1, 256)
        (checkpoint / name).write_bytes(damaged)
        refused(checkpoint, name)
        (checkpoint / name).write_bytes(whole[name])
        hit.add(name)
    assert hit == set(NAMES)
    verify(checkpoint)


def test_every_bit_of_the_marker_counts(tmp_path):
    checkpoint = saved(tmp_path, world=1, tensors={("parameters", "w"): torch.zeros(1)})
    whole = (checkpoint / "COMPLETE").read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (checkpoint / "COMPLETE").write_bytes(damaged)
        with pytest.raises(CheckpointError, match="COMPLETE"):
            verify(checkpoint)


def test_every_byte_of_a_header_counts(tmp_path):
    tensors = {("parameters", "w"): torch.zeros(1)}
    checkpoint = saved(tmp_path, world=1, tensors=tensors)
    path = checkpoint / "rank-00000.safetensors"
    whole = path.read_bytes()
    for at in range(len(whole) - 4):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        refused(checkpoint, "rank-00000.safetensors: the header", tensors=tensors)


def test_a_flipped_bit_names_file_and_tensor(tmp_path):
    checkpoint = saved(tmp_path)
    path = checkpoint / "rank-00001.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    refused(checkpoint, "rank-00001.safetensors", "parameters/norm.weight", world=2)


@pytest.mark.parametrize("name", NAMES)
def test_truncation_and_growth_are_refused(tmp_path, name):
    checkpoint = saved(tmp_path)
    whole = (checkpoint / name).read_bytes()
    for text in (
        b"",
        whole[:1],
        whole[: len(whole) // 2],
        whole[:-1],
        whole + b"\0",
        whole + b"\n",
    ):
        (checkpoint / name).write_bytes(text)
        refused(checkpoint, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_refused(tmp_path, name):
    checkpoint = saved(tmp_path)
    (checkpoint / name).unlink()
    refused(checkpoint, name)


def test_files_of_another_step_are_refused_one_by_one_and_all_but_one(tmp_path):
    earlier = VALUES | {"step": {"step": 10}}
    old = saved(tmp_path, 10, values=earlier)
    new = saved(tmp_path, 20, tensors=whole_tensors(seed=1))
    mine, theirs = files(new), files(old)
    for name in NAMES:
        (new / name).write_bytes(theirs[name])
        refused(new, str(new))
        (new / name).write_bytes(mine[name])
    verify(new)
    for kept in NAMES:
        for name in NAMES:
            (new / name).write_bytes(mine[name] if name == kept else theirs[name])
        refused(new, str(new))


def test_an_old_rank_file_in_place_is_refused_by_name(tmp_path):
    old, new = saved(tmp_path, 10), saved(tmp_path, 20, tensors=whole_tensors(seed=1))
    shutil.copy(old / "rank-00001.safetensors", new)
    refused(new, "rank-00001.safetensors")


def test_index_and_marker_of_another_step_are_refused(tmp_path):
    old, new = saved(tmp_path, 10), saved(tmp_path, 20)
    for name in ("index.json", "COMPLETE"):
        shutil.copy(old / name, new)
    refused(new, "index.json", "step 10", "step-00000010")


def test_a_checkpoint_under_the_name_of_another_step_is_refused(tmp_path):
    checkpoint = saved(tmp_path, 10)
    checkpoint.rename(tmp_path / "step-00000020")
    refused(tmp_path / "step-00000020", "index.json", "step 10")


def test_a_checkpoint_under_a_name_of_ones_own_is_fine(tmp_path):
    verify(saved(tmp_path, 10).rename(tmp_path / "best"))


def test_files_swapped_between_processes_are_refused(tmp_path):
    tensors = {("parameters", "w"): torch.arange(8.0), ("moments", "m"): torch.zeros(8)}
    checkpoint = saved(tmp_path, tensors=tensors)
    first, second = checkpoint / NAMES[2], checkpoint / NAMES[3]
    assert first.stat().st_size == second.stat().st_size
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    refused(checkpoint, "rank-0000", tensors=tensors)


@pytest.mark.parametrize("name", ["rank-00002.safetensors", "COMPLETE.tmp", "notes.txt", ".hidden"])
def test_a_file_that_is_not_of_the_checkpoint_is_refused(tmp_path, name):
    checkpoint = saved(tmp_path)
    (checkpoint / name).write_bytes(b"")
    refused(checkpoint, name)


def test_links_and_folders_in_the_place_of_files_are_refused(tmp_path):
    checkpoint = saved(tmp_path)
    for name in NAMES:
        (checkpoint / name).rename(tmp_path / name)
        (checkpoint / name).symlink_to(tmp_path / name)
        refused(checkpoint, name, "not a plain file")
        (checkpoint / name).unlink()
        (checkpoint / name).mkdir()
        refused(checkpoint, name, "not a plain file")
        (checkpoint / name).rmdir()
        os.mkfifo(checkpoint / name)
        refused(checkpoint, name, "not a plain file")
        (checkpoint / name).unlink()
        (tmp_path / name).rename(checkpoint / name)
    verify(checkpoint)


def test_a_link_to_a_checkpoint_is_not_followed(tmp_path):
    checkpoint = saved(tmp_path / "elsewhere")
    (tmp_path / "step-00000020").symlink_to(checkpoint)
    refused(tmp_path / "step-00000020", "not a folder")
    assert newest(tmp_path)[0] is None


def test_a_folder_that_is_not_there_is_an_error_and_no_traceback(tmp_path):
    refused(tmp_path / "step-00000099", "step-00000099", "No such file")


# A sound checkpoint and a state that is not the one it was saved from.


def restore_into(checkpoint, state):
    before = contents(state)
    with pytest.raises(CheckpointError) as error:
        run(1, lambda p: restore(checkpoint, state, p))
    assert contents(state) == before
    return str(error.value)


def test_a_cast_is_refused_in_both_directions(tmp_path):
    tensors = whole_tensors()
    checkpoint = saved(tmp_path, tensors=tensors)
    cast = {key: whole.bfloat16() for key, whole in tensors.items()}
    assert "is float32 in" in restore_into(checkpoint, state_of(cast))
    same_width = {key: whole.view(torch.int32) for key, whole in tensors.items()}
    assert "and int32 here" in restore_into(checkpoint, state_of(same_width))


def test_another_shape_is_refused_even_with_as_many_elements(tmp_path):
    checkpoint = saved(tmp_path)
    tensors = whole_tensors()
    tensors["parameters", "embed.weight"] = torch.zeros(6, 13)
    message = restore_into(checkpoint, state_of(tensors))
    assert "parameters/embed.weight has shape (13, 6)" in message


def test_a_missing_and_an_unexpected_tensor_are_named(tmp_path):
    checkpoint = saved(tmp_path)
    more, fewer = whole_tensors(), whole_tensors()
    more["buffers", "new"] = torch.zeros(2)
    del fewer["buffers", "router.bias"]
    assert "does not hold the tensor buffers/new" in restore_into(checkpoint, state_of(more))
    assert "holds the tensor buffers/router.bias" in restore_into(checkpoint, state_of(fewer))


def test_a_missing_and_an_unexpected_stream_are_named(tmp_path):
    fewer = {k: v for k, v in VALUES.items() if k != "data"}
    checkpoint = saved(tmp_path, values=fewer)
    assert "does not hold the stream data" in restore_into(checkpoint, state_of(whole_tensors()))
    checkpoint = saved(tmp_path / "all")
    state = state_of(whole_tensors(), values=fewer)
    assert "holds the stream data" in restore_into(checkpoint, state)


def test_a_stream_that_nobody_knows_cannot_be_saved(tmp_path):
    state = state_of(whole_tensors(), values={})
    state.pieces.append(Piece("weather", "wind", torch.zeros(2), Box((2,), (0,), (2,))))
    with pytest.raises(CheckpointError, match="weather/wind: unknown stream 'weather'"):
        run(1, lambda p: save(tmp_path, 20, state, p))


def flipped_while_loading(tmp_path, monkeypatch, tensors, world, process):
    """The message of a restore in which one process reads the first bit of each part wrongly."""
    checkpoint = saved(tmp_path, tensors=tensors)
    honest = load.read

    def flipping(descriptor, start, nbytes, path):
        data = honest(descriptor, start, nbytes, path)
        data[0] ^= threading.current_thread().name == str(process)
        return data

    monkeypatch.setattr(load, "read", flipping)

    def work(processes):
        threading.current_thread().name = str(processes.rank)
        restore(checkpoint, blank_of(tensors, processes.rank, world), processes)

    with pytest.raises(CheckpointError) as error:
        run(world, work)
    return str(error.value)


@pytest.mark.parametrize(("world", "process"), [(1, 0), (2, 0), (2, 1)])
def test_a_part_that_was_read_wrongly_is_found_after_the_load(
    tmp_path, monkeypatch, world, process
):
    tensors = {("parameters", "w"): torch.arange(9.0)}
    message = flipped_while_loading(tmp_path, monkeypatch, tensors, world, process)
    assert "parameters/w from rank-00000.safetensors, rank-00001.safetensors" in message


def test_a_replica_that_was_read_wrongly_is_found_on_any_process(tmp_path, monkeypatch):
    tensors = {("buffers", "b"): torch.arange(9.0)}
    message = flipped_while_loading(tmp_path, monkeypatch, tensors, 3, 2)
    assert "buffers/b from rank-00000.safetensors in" in message
