"""Recording programs with quantized tensors: a row for each part, the outer op once, and its inner
ops."""

import pytest
import torch
import torch.distributed as dist
from fingerprint import quantized_fakes as fakes
from recording_fakes import Recording, recorded
from torch import nn
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torchao.prototype.mx_formats.mx_tensor import MXTensor

from bitstep import observe
from bitstep.diff import compare_runs
from bitstep.fingerprint import part
from bitstep.fingerprint.definition import sum_of
from bitstep.observe.snapshot import Item, logical_of, read, root_of
from bitstep.records import Box, Flag, Outcome

PARTS = ["payload", "scale", "meta"]


def to_mx(values):
    return MXTensor.to_mx(values, torch.float8_e4m3fn, 32)


def drawn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


class Product(torch.autograd.Function):
    """A linear layer as mixed-precision training has it: each operand quantized for each product,
    along the dimension that is summed over."""

    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return to_mx(x) @ to_mx(weight).t()

    @staticmethod
    def backward(context, grad):
        x, weight = context.saved_tensors
        columns = [to_mx(one.t().contiguous()) for one in (grad, x, weight)]
        return to_mx(grad) @ columns[2].t(), columns[0] @ columns[1].t()


class Trained(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(drawn(32, 64, seed=1))

    def forward(self, x):
        return Product.apply(x, self.weight)


class Frozen(nn.Module):
    """A layer whose weight is held quantized."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(to_mx(drawn(64, 64, seed=2)), requires_grad=False)

    def forward(self, x):
        return torch.nn.functional.linear(to_mx(x), self.weight)


class Quantize(nn.Module):
    def forward(self, x):
        return to_mx(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen, self.quantize, self.trained = Frozen(), Quantize(), Trained()

    def forward(self, x):
        with torch.no_grad():
            hidden = self.frozen(x)
            self.quantize(hidden)
        return self.trained(hidden)


def train(steps=2, between=lambda step, net: None):
    net = Net()
    optimizer = torch.optim.SGD(net.trained.parameters(), lr=0.1)
    for step in range(steps):
        net(drawn(32, 64, seed=10 + step)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        between(step + 1, net)
    return net


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = tmp_path_factory.mktemp("trained") / "run"
    return run, recorded(run, lambda _: train())


def test_nothing_is_skipped_and_nothing_failed(trained):
    found = trained[1]
    assert found.gaps() == []
    assert [row for row in found.rows if row.flags & Flag.SKIPPED] == []
    assert found.value(slot="count.skipped", step=1) == 0


def test_a_quantized_parameter_has_a_row_per_part_with_the_bits_of_the_definition(trained):
    weight = Frozen().weight
    rows = trained[1].of(module="Net.frozen.weight", slot="param", step=1, occurrence=1)
    assert [row.site.part for row in rows] == PARTS
    payload, scale, meta = rows
    raw = [tensor.view(torch.uint8).numpy().tobytes() for tensor in (weight.qdata, weight.scale)]
    assert [payload.digest, scale.digest] == [sum_of(one) for one in raw]
    assert (payload.dtype, payload.shape, scale.shape) == ("uint8", (64, 64), (64, 2))
    assert meta.dtype.startswith("class=MXTensor dtype=bfloat16 codes=float8_e4m3fn ")
    assert meta.shape == (64, 64)


def test_an_op_on_quantized_tensors_is_named_once_with_its_parts_around_its_own_ops(trained):
    found = trained[1]
    outer = found.of(step=1, phase="forward", module="Net.frozen", op="aten.mm[MXTensor]")
    assert [(row.site.slot, row.site.part) for row in outer] == [
        *(("in.0", name) for name in PARTS),
        *(("in.1", name) for name in PARTS),
        ("out.0", "bits"),
    ]
    assert {row.site.occurrence for row in outer} == {0}
    inner = [row for row in found.of(step=1, phase="forward", module="Net.frozen")
             if outer[5].seq < row.seq < outer[6].seq]  # fmt: skip
    assert {"aten._to_copy", "aten.mul.Tensor", "aten.mm"} <= {row.site.op for row in inner}
    [result] = [row for row in inner if (row.site.op, row.site.slot) == ("aten.mm", "out.0")]
    assert result.digest == outer[6].digest


def test_every_result_inside_has_a_row_also_of_ops_that_are_views_by_their_schema(trained):
    """`to` computes there, and comes whole: whoever reads its result names its writer."""
    found = trained[1]
    products = found.of(step=1, phase="forward", module="Net.frozen", op="aten.mul.Tensor")
    reads = [row for row in products if row.site.slot.startswith("in.")]
    written = {row.seq: row for row in found.rows if row.site.slot == "out.0"}
    # Of two products of codes and scales each reads what `_to_copy` made.
    assert [written[row.writer].site.op for row in reads] == ["aten._to_copy"] * 4


def test_products_of_forward_and_backward_are_all_there(trained):
    found = trained[1]
    calls = [
        (row.site.phase, row.site.occurrence)
        for row in found.of(step=1, module="Net.trained", op="aten.mm[MXTensor]", slot="out.0")
    ]
    assert calls == [("forward", 0), ("backward", 0), ("backward", 1)]


def test_what_a_module_gives_back_quantized_has_a_row_per_part(trained):
    found = trained[1]
    rows = found.of(step=1, module="Net.quantize", op="", slot="out.0")
    assert [row.site.part for row in rows] == PARTS
    made = found.of(step=1, module="Net.quantize", slot="out.0", op="aten._to_copy")
    assert rows[0].digest in {row.digest for row in made}


def test_equal_runs_are_the_same_and_recording_changes_no_bit(trained, tmp_path):
    with observe.record(tmp_path / "again", level="op"):
        again = train()
    assert compare_runs(trained[0], tmp_path / "again").outcome is Outcome.SAME
    bare = train()
    assert torch.equal(again.trained.weight, bare.trained.weight)


@pytest.mark.parametrize("level", ["phase", "op"])
def test_one_byte_of_the_scales_that_somebody_changed_is_named_with_what_stayed(level, tmp_path):
    for name, bit in (("a", 0), ("b", 1)):

        def change(step, net, bit=bit):
            # By NumPy: no operation is recorded.
            if step == 1:
                net.frozen.weight.scale.view(torch.uint8).numpy()[7, 1] ^= bit

        with observe.record(tmp_path / name, level=level):
            train(3, change)
    [cause] = compare_runs(tmp_path / "a", tmp_path / "b").causes
    assert cause.title.endswith(": same payload, scales differ")
    assert cause.where.part == "scale"
    assert "Net.frozen.weight" in cause.title
    assert (cause.a.shape, cause.b.shape) == ((64, 2), (64, 2))


def test_a_batch_that_is_quantized_has_a_row_per_part(tmp_path):
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return x.dequantize().float().mean() * self.weight

    found = recorded(
        tmp_path / "run", lambda _: Reads()(to_mx(drawn(32, 32, seed=3))).backward(), level="phase"
    )
    assert [row.site.part for row in found.of(step=1, slot="batch", module="0")] == PARTS


def root(tensor):
    return root_of(read([Item("Net.weight", "param", tensor)]))


@pytest.mark.parametrize("make", [fakes.mxfp8, fakes.nvfp4, fakes.blockwise, fakes.grouped])
def test_the_root_sees_every_part_and_no_padding(make):
    field = "scale_inv" if make is fakes.grouped else "_rowwise_scale_inv"
    changed, tensor = make(), make()
    fakes.flip(getattr(changed, field))
    assert root(make(padding=2)) == root(tensor) != root(changed)


def test_plain_tensors_have_the_roots_that_they_had_before_there_were_parts():
    """The roots of runs that were recorded before stay comparable."""
    rows = read([Item("Net.weight", "param", torch.arange(3.0))])
    assert [row.part for row in rows] == ["bits"]
    assert root_of(rows) == 2090983465206877830


@pytest.fixture
def mesh(tmp_path):
    store = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def sharded(tensor, mesh):
    return DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False)


def test_a_dtensor_that_holds_a_quantized_part_has_parts_with_places(mesh):
    rows = read([Item("w", "param", sharded(to_mx(drawn(64, 64, seed=4)), mesh))])
    assert [(row.part, row.place) for row in rows] == [
        ("payload", Box((64, 64), (0, 0), (64, 64))),
        ("scale", Box((64, 2), (0, 0), (64, 2))),
        ("meta", None),
    ]


def test_a_product_of_dtensors_that_hold_quantized_parts_has_rows_of_both(mesh, tmp_path):
    model = nn.Linear(1, 1)
    operands = [sharded(to_mx(drawn(64, 64, seed=seed)), mesh) for seed in (5, 6)]

    def program(_):
        model(torch.ones(1, 1))
        torch.ops.aten.detach(operands[0])

    found = recorded(tmp_path / "run", program)
    assert found.gaps() == []
    assert "aten.detach[MXTensor]" in {row.site.op for row in found.rows}


def test_places_of_shards_add_up_to_the_whole_payload_and_scales():
    whole = to_mx(drawn(64, 64, seed=7))
    sums = {"payload": 0, "scale": 0}
    logical = 0
    for first in (0, 48):
        size = 48 if first == 0 else 16
        place = Box((64, 64), (first, 0), (size, 64))
        piece = to_mx(drawn(64, 64, seed=7)[first : first + size])
        rows = read([Item("w", "param", piece, place, main=True)])
        for row in rows[:2]:
            sums[row.part] += row.digest.sum
        logical += logical_of(rows)
    raw = {"payload": whole.qdata, "scale": whole.scale}
    for name, tensor in raw.items():
        data = tensor.view(torch.uint8)
        all_of_it = part(data, Box(tuple(data.shape), (0, 0), tuple(data.shape)))
        assert sums[name] % 2**64 == all_of_it.sum
    [payload, scale, meta] = read([Item("w", "param", whole, main=True)])
    assert logical % 2**64 == logical_of([payload, scale])
    assert meta.part == "meta"


def test_a_part_whose_place_cannot_be_said_is_not_counted_for_the_whole():
    place = Box((320, 96), (160, 0), (160, 96))
    rows = read([Item("w", "param", fakes.mxfp8(), place, main=True)])
    assert {row.part: row.place is not None and row.main for row in rows} == {
        "payload": True, "scale": True, "payload.column": False, "scale.column": False,
        "meta": False,
    }  # fmt: skip


def test_a_run_of_plain_tensors_has_bits_alone(tmp_path):
    model = nn.Linear(2, 2)
    found = recorded(tmp_path / "run", lambda _: model(torch.ones(1, 2)).sum().backward())
    assert {row.site.part for row in found.rows} == {"bits"}
    assert not any("[" in row.site.op for row in found.rows)
    assert isinstance(found, Recording)
