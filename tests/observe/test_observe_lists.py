"""Lists of tensors that lie as the last at their place: one call, and what each has by itself."""

import pytest
import torch
from recording_fakes import recorded

from bitstep.observe.digests import digest_of
from bitstep.observe.lists import laid_out
from bitstep.observe.seen import Seen
from bitstep.observe.strided import strided_sum
from bitstep.records import Flag


def tensors():
    flat = torch.arange(40.0)
    return [flat[:8], flat[8:20].view(3, 4).t(), torch.ones(0, 2), torch.ones(5000), torch.ones(())]


def one_by_one(seen, given):
    accesses = [seen.read(tensor) for tensor in given]
    return tuple(list(column) for column in zip(*accesses, strict=True))


def changed(**what):
    """The same list, but for one thing."""
    given = tensors()
    if "shape" in what:
        given[0] = given[0].view(2, 4)
    if "stride" in what:
        given[1] = given[1].contiguous()
    if "dtype" in what:
        given[4] = torch.ones((), dtype=torch.float64)
    if "length" in what:
        given.pop()
    if "negated" in what:
        given[0] = torch._neg_view(given[0])
    if "inference" in what:
        with torch.inference_mode():
            given[0] = torch.arange(8.0)
    if "freed" in what:
        given[3].untyped_storage().resize_(0)
    if "none" in what:
        given[0] = None
    return given


def test_a_list_has_what_its_tensors_have_one_by_one():
    given = tensors()
    laid = laid_out(given)
    seen = Seen(rehash=False)
    seen.wrote(given[0], seq=3)
    seen.made_blank(given[3])
    sums, dtypes, shapes, flags, versions, writers = one_by_one(seen, given)
    assert seen.read_list(given, laid) == (sums, versions, writers, flags)
    assert (list(laid.dtypes), list(laid.shapes)) == (dtypes, shapes)
    assert writers[:2] == [3, 3]
    assert flags[3] == Flag.UNINITIALISED


@pytest.mark.parametrize(
    "what", ["shape", "stride", "dtype", "length", "negated", "inference", "freed", "none"]
)
def test_a_list_that_lies_otherwise_is_looked_at_one_by_one(what):
    laid = laid_out(tensors())
    assert laid.addresses(tensors()) is not None
    assert laid.addresses(changed(**{what: True})) is None


def test_other_bits_at_other_places_have_other_sums():
    given = tensors()
    laid = laid_out(given)
    given[0] = torch.arange(8.0) + 1
    given[3][7] = 2
    seen = Seen(rehash=True)
    assert seen.read_list(given, laid).sums == one_by_one(seen, given)[0]


@pytest.mark.parametrize("rehash", [False, True])
def test_an_element_is_carried_as_it_is_outside_of_a_list(rehash):
    given = tensors()
    seen, laid = Seen(rehash), laid_out(given)
    assert seen.wrote_list(given, laid, seq=10).writers == [-1] * 5
    given[3].data[0] = 7  # Unseen: a carried digest hides it, a fresh one does not.
    found = seen.read_list(given, laid)
    assert found.writers == [11, 11, 12, 13, 14]
    fresh = digest_of(given[3]).sum
    assert (found.sums[3] == fresh) is rehash
    assert found.flags == (None if rehash else [0, 0, 0, int(Flag.CARRIED), 0])


def test_a_list_that_fills_what_nobody_wrote_is_looked_at_one_by_one():
    given = tensors()
    seen, laid = Seen(rehash=False), laid_out(given)
    seen.made_blank(given[3])
    assert seen.wrote_list(given, laid, seq=1) is None


def test_elements_are_named_anew_where_their_names_change(tmp_path):
    def program(recorder):
        hooks, given = recorder._events, [torch.ones(2) for _ in range(4)]
        for name in ("", "a", "b"):
            hooks.names_of_addresses = {given[1].data_ptr(): name} if name else {}
            torch._foreach_mul_(given, 2.0)
            recorder._scope.new_step()  # The same place of the program once more.

    rows = recorded_rows(tmp_path, program, "aten._foreach_mul_.Scalar")
    assert [row.site.slot for row in rows if row.site.slot.startswith("in")] == [
        *("in.0[0]", "in.0[1]", "in.0[2]", "in.0[3]"),
        *("in.0[0]", "in.0[a]", "in.0[2]", "in.0[3]"),
        *("in.0[0]", "in.0[b]", "in.0[2]", "in.0[3]"),
    ]


def test_a_list_that_an_op_gives_back_has_fresh_rows_each_time(tmp_path):
    given = [torch.full((2,), float(at)) for at in range(5)]

    def program(recorder):
        for _ in range(3):
            results = torch._foreach_add(given, 1.0)
            given[2].copy_(results[2])
            recorder._scope.new_step()

    rows = recorded_rows(tmp_path, program, "aten._foreach_add.Scalar")
    out = [(row.site.slot, row.digest) for row in rows if row.site.slot.startswith("out")]
    assert out == [
        (f"out.{at}", digest_of(torch.full((2,), value)).sum)
        for turn in range(3)
        for at, value in enumerate([1.0, 2.0, 3.0 + turn, 4.0, 5.0])
    ]


def recorded_rows(tmp_path, program, op):
    """The rows of an op in a program that trains once."""

    def whole(recorder):
        layer = torch.nn.Linear(2, 2)
        layer(torch.ones(1, 2)).sum().backward()
        program(recorder)

    return recorded(tmp_path / "run", whole).of(op=op)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, 3:11],
        lambda x: x.view(4, 3, 2, 64).permute(1, 0, 2, 3)[1],
        lambda x: x.view(4, 3, 2, 64).permute(2, 1, 0, 3)[:, ::2],
        lambda x: x[:1].expand(5, 384)[:, :32],
        lambda x: x.to(torch.bfloat16)[1:, 16:48],
    ],
)
def test_a_strided_tensor_is_read_run_by_run(view):
    tensor = view(torch.randn(4, 384))
    whole = digest_of(tensor.contiguous())
    shape, stride = tuple(tensor.shape), tensor.stride()
    assert strided_sum(tensor.data_ptr(), shape, stride, tensor.itemsize) == whole.sum
    assert digest_of(tensor) == whole
    tensor[-1, -1] = 17  # The runs are remembered, their bits are not.
    assert digest_of(tensor) == digest_of(tensor.contiguous()) != whole


def test_runs_that_are_too_short_are_copied():
    tensor = torch.randn(8, 8)[:, ::2]
    assert strided_sum(tensor.data_ptr(), (8, 4), tensor.stride(), 4) is None
    assert digest_of(tensor) == digest_of(tensor.contiguous())
