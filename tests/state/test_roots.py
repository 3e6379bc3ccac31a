"""Roots: 64 bits for a whole state, from parts, without a gather."""

import pytest
import torch

from bitstep.errors import FingerprintError
from bitstep.fingerprint import fingerprint
from bitstep.records import Box
from bitstep.state.processes import Processes
from bitstep.state.roots import state_root, value_fingerprint, whole_fingerprints
from bitstep.state.streams import Piece, start_values

ALONE = Processes(rank=0, world=1)


class Lockstep(Processes):
    """Two processes played by one: the sums of the other are added where they would meet."""

    def __init__(self, rank: int, other: torch.Tensor) -> None:
        super().__init__(rank=rank, world=2)
        object.__setattr__(self, "other", other)

    def sum_int64(self, tensor: torch.Tensor) -> None:
        tensor += self.other


def piece(tensor: torch.Tensor, name: str = "w") -> Piece:
    shape = tuple(tensor.shape)
    return Piece("parameters", name, tensor, Box(shape, (0,) * len(shape), shape))


def test_a_whole_piece_has_the_fingerprint_of_its_tensor():
    tensor = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert whole_fingerprints([piece(tensor)], ALONE) == {"parameters/w": fingerprint(tensor)}


def test_two_halves_on_two_processes_add_up_to_the_whole():
    tensor = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    top = Piece("parameters", "w", tensor[:3], Box((5, 3), (0, 0), (3, 3)))
    bottom = Piece("parameters", "w", tensor[3:], Box((5, 3), (3, 0), (2, 3)))
    sent: list[torch.Tensor] = []

    class Listener(Lockstep):
        def sum_int64(self, tensor: torch.Tensor) -> None:
            sent.append(tensor.clone())
            tensor[:, 1] = 60  # so that the listener's own half is accepted

    whole_fingerprints([bottom], Listener(1, torch.zeros(1)))
    together = whole_fingerprints([top], Lockstep(0, sent[0]))
    assert together == {"parameters/w": fingerprint(tensor)}


def test_a_shard_that_no_process_holds_is_an_error():
    half = Piece("parameters", "w", torch.zeros(3, 3), Box((5, 3), (0, 0), (3, 3)))
    with pytest.raises(FingerprintError):
        whole_fingerprints([half], ALONE)


def test_a_replica_counts_once():
    tensor = torch.arange(4)
    replica = Piece("buffers", "b", tensor, Box((4,), (0,), (4,)), replicated=True)
    nothing = torch.zeros(1, 2, dtype=torch.int64)
    first = whole_fingerprints([replica], Lockstep(0, nothing))
    assert first == {"buffers/b": fingerprint(tensor)}
    whole = fingerprint(tensor).sum
    of_first = torch.tensor([[whole - 2**64 if whole >= 2**63 else whole, 32]])
    assert whole_fingerprints([replica], Lockstep(1, of_first)) == first


def test_the_state_root_sees_every_tensor_and_every_value():
    prints = whole_fingerprints([piece(torch.ones(3))], ALONE)
    values = start_values(seed=1)
    base = state_root(prints, values)
    other_tensor = whole_fingerprints([piece(torch.ones(3).neg())], ALONE)
    assert state_root(other_tensor, values) != base
    for stream, value in values.items():
        for name in value:
            changed = {**values, stream: {**value, name: value[name] + 1}}
            assert state_root(prints, changed) != base, (stream, name)


def test_the_order_of_names_does_not_change_the_root():
    values = start_values(seed=1)
    backwards = dict(reversed(list(values.items())))
    prints = {"a": fingerprint(torch.ones(1)), "b": fingerprint(torch.zeros(1))}
    reordered = dict(reversed(list(prints.items())))
    assert state_root(prints, values) == state_root(reordered, backwards)


def test_value_fingerprints_follow_the_bits_of_a_float():
    assert value_fingerprint({"x": 0.1 + 0.2}) != value_fingerprint({"x": 0.3})
    with pytest.raises(ValueError, match="JSON"):
        value_fingerprint({"x": float("nan")})
