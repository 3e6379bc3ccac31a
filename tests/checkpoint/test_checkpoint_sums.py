"""The sums that are taken from bytes are those that the fingerprint takes from tensors."""

import sys

import numpy as np
import pytest
import torch

from bitstep.checkpoint.rankfile import plan, raw
from bitstep.checkpoint.sums import runs, sums_of
from bitstep.fingerprint import part
from bitstep.records import Box

BOXES = [
    Box((), (), ()),
    Box((7,), (0,), (7,)),
    Box((7,), (3,), (2,)),
    Box((5, 6), (0, 0), (5, 6)),
    Box((5, 6), (2, 0), (3, 6)),
    Box((5, 6), (1, 2), (3, 3)),
    Box((4, 3, 5), (1, 1, 0), (2, 2, 5)),
    Box((4, 3, 5), (1, 0, 2), (2, 3, 3)),
    Box((4, 1, 5, 1), (1, 0, 2, 0), (2, 1, 2, 1)),
    Box((3000, 3), (1000, 0), (1999, 3)),
    Box((2, 700_000), (1, 5), (1, 699_990)),
]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "complex128"])
@pytest.mark.parametrize("box", BOXES, ids=str)
def test_bytes_and_tensor_have_the_same_sums(monkeypatch, box, dtype, compiled):
    if not compiled:
        monkeypatch.setitem(sys.modules, "bitstep.fingerprint.cpu", None)
        monkeypatch.delattr("bitstep.fingerprint.cpu", raising=False)
    count = torch.Size(box.sizes).numel() * getattr(torch, dtype).itemsize
    data = torch.from_numpy(np.random.default_rng(1).integers(0, 256, count, dtype=np.uint8))
    local = data.view(getattr(torch, dtype)).reshape(box.sizes)
    expected = tuple(f"{part(local, box, table=table).sum:016x}" for table in (1, 2))
    assert sums_of(data.numpy(), dtype, box) == expected
    assert raw(local).tobytes() == data.numpy().tobytes()


def test_a_cut_along_the_first_dimension_is_one_run():
    assert runs(Box((10, 6, 2), (4, 0, 0), (3, 6, 2)), 4) == (192, 144, [])
    assert runs(Box((10, 6, 2), (4, 1, 0), (3, 2, 2)), 4) == (200, 16, [(3, 48)])


def test_the_header_is_golden_and_wide_elements_come_first():
    head, slots = plan([("a@0", "uint8", (3,)), ("b@0", "int64", (2,)), ("c@", "complex128", ())])
    assert head == (
        b"\xb0\0\0\0\0\0\0\0"
        b'{"a@0":{"data_offsets":[32,35],"dtype":"U8","shape":[3]},'
        b'"b@0":{"data_offsets":[16,32],"dtype":"I64","shape":[2]},'
        b'"c@":{"data_offsets":[0,16],"dtype":"U8","shape":[16]}}' + b" " * 7
    )
    assert [tuple(slot) for slot in slots] == [("c@", 184, 16), ("b@0", 200, 16), ("a@0", 216, 3)]
