"""Small states, cut for any number of processes, and processes that are threads."""

import json
import threading
from pathlib import Path

import pytest
import torch

from bitstep.checkpoint import restore, save, verify
from bitstep.checkpoint.format import canonical, marker_text
from bitstep.errors import CheckpointError
from bitstep.records import Box
from bitstep.state.streams import Piece, TrainingState

VALUES = {
    "schedule": {"position": 20, "lr": 0.1 + 0.2, "tiny": 5e-324, "minus_zero": -0.0},
    "random": {"seed": 2**64 - 1, "counter": 20},
    "data": {"position": 160, "files": ["a.py", "b\u00e9.py"], "none": None, "flag": True},
    "step": {"step": 20},
}


class ThreadProcesses:
    """One of `world` processes, each a thread; collectives meet at a barrier."""

    def __init__(self, rank, world, shared):
        self.rank, self.world, self.shared = rank, world, shared

    def exchange(self, value):
        if self.world == 1:
            return [value]
        slots, barrier = self.shared
        slots[self.rank] = value
        barrier.wait(30)
        everyone = list(slots)
        barrier.wait(30)
        return everyone

    def gather(self, value):
        everyone = self.exchange(value)
        return everyone if self.rank == 0 else None

    def broadcast(self, value):
        return self.exchange(value)[0]

    def sum_int64(self, tensor):
        tensor.copy_(sum(self.exchange(tensor.clone())))


def run(world, work):
    """The result of work(processes) on each process; raises the errors of all that failed."""
    shared = ([None] * world, threading.Barrier(world))
    results, errors = [None] * world, [None] * world

    def body(rank):
        try:
            results[rank] = work(ThreadProcesses(rank, world, shared))
        except Exception as error:
            errors[rank] = error

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if any(errors):
        messages = {str(error) for error in errors}
        assert len(messages) == 1, messages
        raise errors[0]
    return results


def rows(whole, rank, world, dim=0):
    """The part of one process of `world`, cut like FSDP2 does it: the last ones may be empty."""
    length = whole.shape[dim]
    chunk = -(-length // world)
    begin, end = min(rank * chunk, length), min((rank + 1) * chunk, length)
    index = [slice(None)] * whole.ndim
    index[dim] = slice(begin, end)
    offsets = [0] * whole.ndim
    offsets[dim] = begin
    local = whole[tuple(index)].clone()
    return local, Box(tuple(whole.shape), tuple(offsets), tuple(local.shape))


def whole_tensors(seed=0, scale=1.0):
    """Logical tensors by (stream, name); two is replicated."""
    g = torch.Generator().manual_seed(seed)
    return {
        ("parameters", "embed.weight"): scale * torch.randn(13, 6, generator=g),
        ("parameters", "norm.weight"): scale * torch.randn(3, generator=g),
        ("moments", "exp_avg/embed.weight"): scale * torch.randn(13, 6, generator=g),
        ("moments", "exp_avg/norm.weight"): scale * torch.randn(3, generator=g),
        ("buffers", "router.bias"): scale * torch.randn(4, generator=g),
    }


def state_of(tensors, rank=0, world=1, values=VALUES, dim=0):
    """The state of one process: everything cut along `dim`, buffers and 0-d tensors replicated."""
    pieces = []
    for (stream, name), whole in tensors.items():
        if stream == "buffers" or whole.ndim == 0:
            shape = tuple(whole.shape)
            place = Box(shape, (0,) * len(shape), shape)
            pieces.append(Piece(stream, name, whole.clone(), place, replicated=True))
        else:
            local, place = rows(whole, rank, world, min(dim, whole.ndim - 1))
            pieces.append(Piece(stream, name, local, place))
    return TrainingState(pieces=pieces, values={k: dict(v) for k, v in values.items()})


def blank_of(tensors, rank=0, world=1, dim=0):
    """As `state_of`, with other content: what a restore must fill."""
    other = {key: whole.clone() for key, whole in tensors.items()}
    for whole in other.values():
        bits(whole).bitwise_not_()
    empty = {stream: {} for stream in VALUES}
    return state_of(other, rank, world, empty, dim)


def bits(tensor):
    """The tensor as unsigned integers or pairs of them, to compare NaN by bits."""
    if tensor.element_size() == 16:
        return torch.view_as_real(tensor).view(torch.int64)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(integers[tensor.element_size()])


def contents(state):
    """Everything in a state, as plain values that `==` compares by bits."""
    tensors = {piece.path: bits(piece.tensor).tolist() for piece in state.pieces}
    return tensors, json.dumps(state.values, sort_keys=True)


def files(folder: Path):
    """Name to bytes of every file."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def saved(root_dir, step=20, world=2, tensors=None, values=VALUES):
    """A complete checkpoint that `world` processes wrote."""
    tensors = whole_tensors() if tensors is None else tensors
    paths = run(
        world,
        lambda p: save(root_dir, step, state_of(tensors, p.rank, world, values), p),
    )
    assert set(paths) == {root_dir / f"step-{step:08d}"}
    return paths[0]


def reseal(folder, edit):
    """Change the index and write the marker that vouches for the change, as an attacker would."""
    index = json.loads((folder / "index.json").read_bytes())
    edit(index)
    text = canonical(index)
    (folder / "index.json").write_bytes(text)
    (folder / "COMPLETE").write_bytes(marker_text(text))


def tensor_of(index, path):
    """The entry of one tensor in an index that was read as JSON."""
    return next(t for t in index["tensors"] if f"{t['stream']}/{t['name']}" == path)


def refused(folder, *words, world=1, tensors=None):
    """Neither verify nor restore takes the folder; both name the words; nothing is loaded."""
    tensors = whole_tensors() if tensors is None else tensors
    with pytest.raises(CheckpointError) as error:
        verify(folder)
    states = [blank_of(tensors, rank, world) for rank in range(world)]
    before = [contents(state) for state in states]
    with pytest.raises(CheckpointError) as also:
        run(world, lambda p: restore(folder, states[p.rank], p))
    for word in words:
        assert word in str(error.value)
        assert word in str(also.value)
    assert "\n" not in str(error.value)
    assert [contents(state) for state in states] == before
