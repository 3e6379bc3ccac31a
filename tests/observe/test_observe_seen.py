"""What may be carried, and what memory that nobody wrote is worth."""

import numpy as np
import pytest
import torch
import torch.distributed.fsdp
from recording_fakes import recorded

from bitstep.observe import native
from bitstep.observe.schemas import plan_of
from bitstep.observe.seen import Seen
from bitstep.records import Flag


def test_an_input_that_a_recorded_op_wrote_is_carried():
    seen, tensor = Seen(rehash=False), torch.ones(4096)
    seen.wrote(tensor, seq=1)
    assert seen.read(tensor).flags == Flag.CARRIED


VIEWS = {
    "another shape": lambda t: t.view(16, 256),
    "another order": lambda t: t.view(64, 64).t(),
    "other dimensions": lambda t: t.view(4, 16, 64).permute(2, 0, 1),
    "another dtype": lambda t: t.view(torch.int32),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_another_view_of_the_same_bytes_carries_their_sum_under_its_own_shape(view):
    tensor = torch.arange(4096.0)
    seen, fresh = Seen(rehash=False), Seen(rehash=True)
    seen.wrote(tensor, seq=1)
    carried, expected = seen.read(view(tensor)), fresh.read(view(tensor))
    assert carried.flags == Flag.CARRIED
    assert carried[:3] == expected[:3]


OTHERS = {
    "a part": lambda t: t[:3000],
    "every second": lambda t: t[::2],
    "more than once": lambda t: t.view(4096, 1).expand(4096, 2),
    "with gaps": lambda t: t.view(64, 64)[:, :60],
    "negative": lambda t: torch._neg_view(t),
}


@pytest.mark.parametrize("view", OTHERS.values(), ids=OTHERS)
def test_a_view_of_other_bytes_or_in_another_order_is_hashed(view):
    tensor = torch.arange(4096.0)
    seen, fresh = Seen(rehash=False), Seen(rehash=True)
    seen.wrote(tensor, seq=1)
    found, expected = seen.read(view(tensor)), fresh.read(view(tensor))
    assert found.flags == 0
    assert found[:3] == expected[:3]


def test_gaps_are_carried_only_for_the_same_gaps():
    tensor = torch.arange(16384.0).view(64, 256)
    seen = Seen(rehash=False)
    seen.wrote(tensor, seq=1)
    left = seen.read(tensor[:, :128])
    other = seen.read(tensor.view(256, 64)[:, :32])  # As many bytes from the same address.
    again = seen.read(tensor.view(256, 64)[:, :32])
    assert (left.flags, other.flags, again.flags) == (0, 0, Flag.CARRIED)
    assert other.sum != left.sum
    assert again.sum == other.sum


def test_another_write_to_the_storage_ends_that_even_where_no_version_moved():
    seen, tensor = Seen(rehash=False), torch.ones(4096)
    seen.wrote(tensor, seq=1)
    seen.wrote(tensor[:1], seq=2)
    assert (seen.read(tensor).flags, seen.read(tensor).writer) == (0, 2)


def test_a_copy_of_memory_that_nobody_wrote_has_no_bits_to_compare(tmp_path):
    def program(recorder):
        layer = torch.nn.Linear(2, 2)
        layer(torch.ones(1, 2)).sum().backward()
        torch.empty(4096).clone()

    found = recorded(tmp_path / "run", program)
    assert not list(found.of(op="aten.clone"))


def test_memory_of_numpy_is_never_blank_though_a_blank_tensor_was_there():
    seen, foreign = Seen(rehash=False), torch.from_numpy(np.ones(4096, np.float32))
    own = torch.ones(4096)
    for tensor in (foreign, own):
        seen.blank[tensor.data_ptr()] = int(Flag.UNINITIALISED)
    assert (seen.is_blank(foreign), seen.read(foreign).flags) == (False, 0)
    assert (seen.is_blank(own), seen.read(own).flags) == (True, Flag.UNINITIALISED)


@pytest.mark.parametrize("compiled", [True, False])
def test_so_it_is_in_a_recording(tmp_path, monkeypatch, compiled):
    if not compiled:
        monkeypatch.setattr(native, "load", lambda: None)

    def program(recorder):
        layer = torch.nn.Linear(2, 2)
        layer(torch.ones(1, 2)).sum().backward()
        array = torch.from_numpy(np.ones(4096, np.float32))
        recorder._seen.blank[array.data_ptr()] = int(Flag.UNINITIALISED)
        array.to(torch.float32, copy=True)
        array.mul(2)

    found = recorded(tmp_path / "run", program)
    for op in ("aten._to_copy", "aten.mul.Tensor"):
        assert found.one(op=op, slot="in.0").flags == 0


def test_of_fsdps_copy_only_the_part_that_it_writes_is_a_result():
    plan = plan_of(torch.ops.fsdp.all_gather_copy_in.default)
    assert [argument.name for argument in plan.reads] == ["all_gather_inputs"]
    assert plan.news == (0,)


@pytest.mark.parametrize(
    ("options", "carried"),
    [
        ({"level": "op"}, True),
        ({"level": "op", "modules": "Net.0"}, False),
        ({"level": "module"}, False),
        ({"level": "phase"}, False),
    ],
)
def test_nothing_is_carried_where_some_operations_are_not_recorded(tmp_path, options, carried):
    """Memory is freed and written again by what is not seen, FSDP2's buffers for one."""
    flags = []

    def program(recorder):
        torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
        seen, tensor = recorder._seen, torch.ones(4096)
        seen.wrote(tensor, seq=1)
        flags.append(seen.read(tensor).flags)

    recorded(tmp_path / "run", program, **options)
    assert flags == [Flag.CARRIED if carried else 0]
