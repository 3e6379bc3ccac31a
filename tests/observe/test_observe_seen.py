"""What may be carried, and what memory that nobody wrote is worth."""

import pytest
import torch
import torch.distributed.fsdp
from recording_fakes import recorded

from bitstep.observe.schemas import plan_of
from bitstep.observe.seen import Seen
from bitstep.records import Flag


def test_an_input_that_a_recorded_op_wrote_is_carried():
    seen, tensor = Seen(rehash=False), torch.ones(4096)
    seen.wrote(tensor, seq=1)
    assert seen.read(tensor).flags == Flag.CARRIED


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
