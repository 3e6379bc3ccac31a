"""What has no dense bits of its own is refused, with what to do instead."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from bitstep.errors import FingerprintError
from bitstep.fingerprint import fingerprint, part
from bitstep.records import Box, FlatRange

pytestmark = pytest.mark.filterwarnings("ignore")


def fake():
    with FakeTensorMode():
        return torch.empty(3)


def freed(view=lambda tensor: tensor):
    """As a sharded engine leaves the parameters that it does not need at the moment."""
    tensor = torch.ones(3)
    viewed = view(tensor)
    tensor.untyped_storage().resize_(0)
    return viewed


class DTensor(torch.Tensor):
    """Stands for the real one, which needs a process group."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (3,))

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
        raise AssertionError("a refusal runs no operation")


class Wrapper(DTensor):
    pass


class AsyncCollectiveTensor(DTensor):
    pass


EYE = torch.eye(3)
RAGGED = [torch.ones(2), torch.ones(3)]
REFUSED = {
    "a list: pass a torch tensor": lambda: [1.0],
    "a DTensor, .* pass to_local.. and its place to part": DTensor,
    "an AsyncCollectiveTensor, .* wait for it first": AsyncCollectiveTensor,
    "a Wrapper, a subclass whose bits are in inner tensors": Wrapper,
    "an UninitializedParameter: it has no bits": torch.nn.UninitializedParameter,
    "a nested tensor .torch.jagged.: pass values": lambda: torch.nested.nested_tensor(
        RAGGED, layout=torch.jagged
    ),
    "a nested tensor .torch.strided.: pass values": lambda: torch.nested.nested_tensor(RAGGED),
    "a sparse tensor .torch.sparse_coo.: pass its indices": EYE.to_sparse,
    "a sparse tensor .torch.sparse_csr.: pass its indices": EYE.to_sparse_csr,
    "a sparse tensor .torch.sparse_bsr.: pass its indices": lambda: torch.eye(4).to_sparse_bsr(2),
    "a tensor of layout torch._mkldnn": EYE.to_mkldnn,
    "a tensor of torch.qint8: pass int_repr": lambda: torch.quantize_per_tensor(
        EYE, 0.1, 0, torch.qint8
    ),
    "a Tensor without data .meta.": lambda: torch.empty(3, device="meta"),
    "a FakeTensor without data": fake,
    "a tensor of shape .3,. without storage of its own": freed,
    "a tensor of shape .2, 1. without storage": lambda: freed(lambda t: t[::2].view(2, 1)),
    "a tensor of shape .3, 2. without storage": lambda: freed(lambda t: t[:1].expand(3, 2)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words):
    tensor = REFUSED[words]()
    with pytest.raises(FingerprintError, match=f"no fingerprint of {words}"):
        fingerprint(tensor)
    with pytest.raises(FingerprintError, match=f"no fingerprint of {words}"):
        part(tensor, FlatRange((3,), 0, 12))


def test_inside_a_functional_transform():
    for transform in (torch.vmap(fingerprint), torch.func.grad(fingerprint)):
        with pytest.raises(FingerprintError, match=r"inside a torch.func transform"):
            transform(torch.ones(3))


def test_an_empty_tensor_without_memory_is_no_freed_one():
    assert fingerprint(torch.empty(0, 3)).sum == 0
    assert part(torch.empty(0, 3), Box((2, 3), (1, 0), (0, 3))) == (0, 0)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (Box((4, 6), (0, 0), (2, 4)), r"shape \(2, 3\) was given the place of \(2, 4\)"),
        (Box((4, 6), (3, 0), (2, 3)), "leaves its tensor"),
        (Box((4, 6), (0, 4), (2, 3)), "leaves its tensor"),
        (Box((4, 6), (-1, 0), (2, 3)), "leaves its tensor"),
        (Box((4, 6), (0,), (2, 3)), "unequal numbers of dimensions"),
        (FlatRange((4, 6), 0, 20), "24 bytes was given the place of 20"),
        (FlatRange((4, 6), 73, 24), "leaves its tensor"),
        (FlatRange((4, 6), -4, 24), "leaves its tensor"),
    ],
)
def test_a_part_that_does_not_fit_its_place(place, words):
    with pytest.raises(FingerprintError, match=words):
        part(torch.ones(2, 3), place)
