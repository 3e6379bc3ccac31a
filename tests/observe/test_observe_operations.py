"""Every dispatched operation: what it read, what it wrote, and that no kind of tensor stops it."""

import ctypes
import warnings

import numpy as np
import pytest
import torch
from recording_fakes import data, recorded, small, train
from torch import nn

from bitstep.fingerprint import fingerprint
from bitstep.records import Flag


def ops_of(tmp_path, program, **options):
    """Record `program` in the forward of step 1, after one training step of nothing else."""
    model = nn.Linear(1, 1)

    def whole(recorder):
        model(torch.ones(1, 1))
        program()

    found = recorded(tmp_path / "run", whole, **options)
    assert found.gaps() == []
    return found


def slots(recording, op):
    return {row.site.slot: row for row in recording.of(op=op, step=1)}


@pytest.mark.parametrize("how", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_what_the_optimizer_writes_is_what_its_next_step_finds(tmp_path, how):
    model = small()

    def program(_):
        train(model, torch.optim.AdamW(model.parameters(), lr=0.1, **how), steps=2)

    found = recorded(tmp_path / "run", program)
    written = {
        row.digest
        for row in found.of(step=1, phase="optimizer")
        if row.site.op and row.site.slot.startswith("mutated")
    }
    for slot in ("param", "state.exp_avg", "state.exp_avg_sq", "state.step"):
        left = found.of(step=1, slot=slot, occurrence=1)
        assert {row.digest for row in left} <= written, slot
    assert found.gaps() == []


def test_the_weights_that_fused_adamw_writes_have_rows(tmp_path):
    model = small()

    def program(_):
        train(model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True), steps=1)

    found = recorded(tmp_path / "run", program)
    op = next(op for op in found.ops(step=1) if op.startswith("aten._fused_adamw_"))
    named = [row.site.slot for row in found.of(step=1, op=op)]
    assert any(slot.startswith("mutated.0[") for slot in named)
    assert sum(slot.startswith("mutated.0[") for slot in named) == 4


def test_an_in_place_op_has_the_state_before_and_after(tmp_path):
    x = torch.ones(3)
    found = ops_of(tmp_path, lambda: x.add_(2))
    rows = slots(found, "aten.add_.Tensor")
    assert rows["in.0"].digest == fingerprint(torch.ones(3)).sum
    assert rows["mutated.0"].digest == fingerprint(torch.full((3,), 3.0)).sum
    assert rows["in.0"].version == 0


def test_out_is_written_and_not_read(tmp_path):
    x, out = torch.ones(3), torch.zeros(3)
    found = ops_of(tmp_path, lambda: torch.add(x, x, out=out))
    rows = slots(found, "aten.add.out")
    assert set(rows) == {"in.0", "in.1", "mutated.0"}
    assert rows["mutated.0"].digest == fingerprint(torch.full((3,), 2.0)).sum


@pytest.mark.parametrize(
    ("op", "run"),
    [
        ("aten.copy_", lambda x: x.copy_(torch.ones(3))),
        ("aten.fill_.Scalar", lambda x: x.fill_(1)),
        ("aten.zero_", lambda x: x.zero_()),
        ("aten.normal_", lambda x: x.normal_()),
        ("aten._foreach_zero_", lambda x: torch._foreach_zero_([x])),
        ("aten._foreach_copy_", lambda x: torch._foreach_copy_([x], [torch.ones(3)])),
    ],
)
def test_what_is_written_whole_is_no_input(tmp_path, op, run):
    x = torch.full((3,), 7.0)
    found = ops_of(tmp_path, lambda: run(x))
    before = fingerprint(torch.full((3,), 7.0)).sum
    assert not [row for row in found.of(op=op) if row.digest == before]
    assert [row for row in found.of(op=op) if row.site.slot.startswith("mutated.0")]


def test_a_write_through_data_is_seen(tmp_path):
    x = torch.ones(3, requires_grad=True)
    found = ops_of(tmp_path, lambda: (x.data.mul_(3), x.detach() + 1))
    written = slots(found, "aten.mul_.Tensor")["mutated.0"]
    read = slots(found, "aten.add.Tensor")["in.0"]
    assert written.digest == read.digest == fingerprint(torch.full((3,), 3.0)).sum
    assert read.writer == written.seq


def test_views_are_hashed_where_they_are_read(tmp_path):
    x = torch.arange(6.0).reshape(2, 3)
    found = ops_of(tmp_path, lambda: x.t()[1:].neg())
    assert found.of(op="aten.t", slot="out.0") == []
    assert slots(found, "aten.neg")["in.0"].digest == fingerprint(x.t()[1:].contiguous()).sum


def test_memory_that_nobody_wrote_is_not_hashed_and_its_read_is_flagged(tmp_path):
    def program():
        x = torch.empty(4)
        x + 1
        x[:2] = 1
        x + 2
        x.fill_(0)
        x + 3

    found = ops_of(tmp_path, program)
    (made,) = found.of(op="aten.empty.memory_format", slot="out.0", step=1)
    assert made.flags == Flag.SKIPPED
    assert made.digest == 0
    reads = found.of(op="aten.add.Tensor", slot="in.0", step=1)
    assert [row.flags for row in reads] == [Flag.UNINITIALISED, Flag.PARTLY, 0]


@pytest.mark.parametrize("rehash", [False, True])
def test_a_write_that_pytorch_does_not_see_is_a_changed_input(tmp_path, rehash):
    """A small tensor is hashed at each read in any case, and so is one that NumPy may write, or
    that no recorded op wrote; a large one that is written through its address alone is not."""
    before, ops = torch.zeros(4096), ("neg", "exp", "abs", "cos")

    def program():
        tensors = [torch.zeros(8), torch.zeros(4096), before, torch.zeros(4096)]
        for write in (False, True):
            if write:
                tensors[1].numpy()[3] = 1
                for tensor in (tensors[0], *tensors[2:]):
                    ctypes.memset(tensor.data_ptr() + 2, 63, 2)
            for tensor, op in zip(tensors, ops, strict=True):
                getattr(tensor, op)()

    found = ops_of(tmp_path, program, rehash=rehash)
    for op in ops:
        first, second = found.of(op=f"aten.{op}", slot="in.0", step=1)
        is_carried = op == ops[-1] and not rehash
        assert (first.digest == second.digest) is is_carried, op
        assert second.flags == (Flag.CARRIED if is_carried else 0)


@pytest.mark.parametrize("rehash", [False, True])
def test_numpy_writes_into_a_parameter_between_steps_are_seen(tmp_path, rehash):
    torch.manual_seed(0)
    model = nn.Linear(100, 100)

    def program(_):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            model(torch.ones(2, 100)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                model.weight.detach().numpy()[0, 0] = 5

    found = recorded(tmp_path / "run", program, rehash=rehash)
    assert found.gaps() == []
    written = found.of(step=1, op="aten.add_.Tensor", slot="mutated.0")
    written += found.of(step=1, op="aten._foreach_add_.List")
    read = found.one(step=2, op="aten.addmm", slot="in.2", phase="forward")
    assert read.digest not in {row.digest for row in written}


def test_a_number_that_is_read_from_a_tensor_has_its_bits(tmp_path):
    def program():
        torch.tensor(0.5).item()
        int(torch.tensor(7))
        bool(torch.tensor(True))

    found = ops_of(tmp_path, program)
    rows = found.of(op="aten._local_scalar_dense", slot="out.0", step=1)
    assert [row.flags for row in rows] == [Flag.SCALAR] * 3
    assert [row.dtype for row in rows] == ["float64", "int64", "int64"]
    assert rows[1].digest == 7


def test_numbers_among_the_arguments_decide_the_digest_of_args(tmp_path):
    x = torch.ones(2)
    found = ops_of(tmp_path, lambda: (x * 2, x * 2, x * 3, torch.clamp(x, 0, 1)))
    rows = found.of(op="aten.mul.Tensor", slot="args", step=1)
    digests = [row.digest for row in rows]
    if digests:
        assert digests[0] == digests[1] != digests[2]
    else:  # A wrapped number is a tensor: then it is an input.
        rows = found.of(op="aten.mul.Tensor", slot="in.1", step=1)
        assert rows[0].digest == rows[1].digest != rows[2].digest
    assert len(found.of(op="aten.clamp", slot="args", step=1)) == 1


def test_a_draw_has_the_state_of_its_own_generator(tmp_path):
    own = torch.Generator().manual_seed(3)
    state = fingerprint(own.get_state()).sum
    torch.manual_seed(11)
    found = ops_of(tmp_path, lambda: (torch.rand(2, generator=own), torch.rand(2)))
    rows = [row for row in found.of(step=1, slot="rng") if row.site.op]
    assert [row.site.op for row in rows] == ["aten.rand.generator", "aten.rand"]
    torch.manual_seed(11)
    nn.Linear(1, 1)
    assert rows[0].digest == state
    assert rows[1].digest != state
    at = [row.site.slot for row in found.of(op="aten.rand.generator") if "at." in row.site.slot]
    assert at[0].startswith("at.test_observe_operations.py:")


def test_a_custom_op_that_writes_its_argument(tmp_path):
    @torch.library.custom_op("bitstep_test::scale", mutates_args={"x"})
    def scale(x: torch.Tensor, by: float) -> torch.Tensor:
        x.numpy()[...] *= by
        return x.sum()

    x = torch.ones(3)
    found = ops_of(tmp_path, lambda: scale(x, 2.0))
    rows = slots(found, "bitstep_test.scale")
    assert rows["in.0"].digest == fingerprint(torch.ones(3)).sum
    assert rows["mutated.0"].digest == fingerprint(torch.full((3,), 2.0)).sum
    assert "out.0" in rows
    assert "args" in rows


def test_autocast_is_recorded_in_the_dtypes_that_it_computes_in(tmp_path):
    x, layer = torch.ones(2, 3), nn.Linear(3, 2)

    def program():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(x)

    rows = slots(ops_of(tmp_path, program), "aten.addmm")
    assert rows["out.0"].dtype == "bfloat16"
    assert rows["in.1"].dtype == "bfloat16"


KINDS = {
    "complex64": lambda: torch.ones(2, dtype=torch.complex64),
    "complex128": lambda: torch.ones(2, dtype=torch.complex128),
    "bool": lambda: torch.ones(2, dtype=torch.bool),
    "uint8": lambda: torch.ones(2, dtype=torch.uint8),
    "uint16": lambda: torch.ones(2).to(torch.uint16),
    "int64": lambda: torch.ones(2, dtype=torch.int64),
    "float16": lambda: torch.ones(2, dtype=torch.float16),
    "float8_e4m3fn": lambda: torch.ones(2).to(torch.float8_e4m3fn),
    "float8_e5m2": lambda: torch.ones(2).to(torch.float8_e5m2),
    "nothing": lambda: torch.ones(0, 3),
    "number": lambda: torch.tensor(2.0),
    "expanded": lambda: torch.ones(1, 3).expand(4, 3),
    "strided": lambda: torch.arange(12.0).reshape(3, 4)[:, ::2],
    "conj": lambda: torch.tensor([1 + 2j]).conj(),
    "neg": lambda: torch.tensor([1 + 2j]).conj().imag,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype_and_layout_in_memory_has_a_digest(tmp_path, kind):
    tensor = KINDS[kind]()
    found = ops_of(tmp_path, lambda: tensor.clone())
    rows = slots(found, "aten.clone")
    assert rows["in.0"].flags == rows["out.0"].flags == 0
    expected = fingerprint(tensor)
    assert (rows["out.0"].digest, rows["in.0"].digest) == (
        fingerprint(tensor.clone()).sum,
        expected.sum,
    )


WITHOUT_BITS = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    ),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "meta": lambda: torch.ones(3, device="meta"),
    "mkldnn": lambda: torch.ones(2, 2).to_mkldnn(),
    "without a shape": lambda: nn.parameter.UninitializedBuffer(),
}


@pytest.mark.parametrize("kind", WITHOUT_BITS)
@pytest.mark.parametrize("level", ["module", "op"])
def test_tensors_without_plain_bits_are_skipped_and_stop_nothing(tmp_path, kind, level):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(1, 1)

        def forward(self, x):
            if not isinstance(x, nn.parameter.UninitializedBuffer):
                x.clone()
            return self.inner(torch.ones(1, 1))

    model = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")

        def program(_):
            tensor = WITHOUT_BITS[kind]()
            model(tensor).mean().backward()

        found = recorded(tmp_path / "run", program, level)
    assert found.gaps() == []
    assert found.steps == [1]
    skipped = [row for row in found.of(step=1) if row.flags & Flag.SKIPPED]
    assert skipped
    assert found.value(step=1, slot="metric.loss") is not None


def test_an_op_that_raises_has_a_row_and_the_program_its_error(tmp_path):
    x = torch.ones(2)

    def program():
        with pytest.raises(RuntimeError, match=r"size|shape"):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        x + 1

    found = ops_of(tmp_path, program)
    rows = slots(found, "aten.mm")
    assert rows["raised"].flags == Flag.RAISED
    assert set(rows) == {"in.0", "in.1", "raised"}
    assert "aten.add.Tensor" in found.ops(step=1)


class Loud(torch.Tensor):
    """Like many a subclass, it has nothing but __torch_function__."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapped(torch.Tensor):
    """A subclass that dispatches: what it is made of has the bits."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [arg.inner if isinstance(arg, cls) else arg for arg in args]
        return cls(func(*plain, **(kwargs or {})))


def test_a_subclass_with_torch_function_has_its_bits(tmp_path):
    x = torch.ones(3).as_subclass(Loud)
    found = ops_of(tmp_path, lambda: x + 1)
    rows = slots(found, "aten.add.Tensor")
    assert rows["out.0"].digest == fingerprint(torch.full((3,), 2.0)).sum


def test_what_a_dispatching_subclass_is_made_of_is_seen(tmp_path):
    x = Wrapped(torch.ones(3))
    kept = []
    found = ops_of(tmp_path, lambda: kept.append(x + 1))
    assert type(kept[0]) is Wrapped
    assert slots(found, "aten.add.Tensor")["out.0"].digest == fingerprint(kept[0].inner).sum


def test_inference_mode(tmp_path):
    x = torch.ones(3)

    def program():
        with torch.inference_mode():
            y = x * 2
            y.add_(1)

    found = ops_of(tmp_path, program)
    rows = slots(found, "aten.add_.Tensor")
    assert rows["mutated.0"].version == -1
    assert rows["mutated.0"].digest == fingerprint(torch.full((3,), 3.0)).sum


def test_functional_transforms(tmp_path):
    x, kept = torch.arange(3.0), []

    def program():
        kept.append(torch.func.grad(lambda y: (y**2).sum())(x))
        kept.append(torch.func.vmap(torch.sin)(x.reshape(3, 1)))

    found = ops_of(tmp_path, program)
    bits = {row.digest for row in found.of(step=1)}
    assert fingerprint(kept[0]).sum in bits
    assert kept[0].tolist() == [0, 2, 4]
    assert kept[1].shape == (3, 1)
    assert "aten.sin" in found.ops(step=1)


@pytest.mark.parametrize("level", ["phase", "module", "op"])
def test_modules_inside_of_functional_transforms(tmp_path, level):
    """Their tensors have no storage; what is inside of them has."""
    model, kept = nn.Linear(3, 1), []

    def loss_of(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).sum()

    def program(_):
        parameters = {name: value.detach() for name, value in model.named_parameters()}
        kept.append(torch.vmap(model)(torch.ones(4, 2, 3)))
        each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))
        kept.append(each(parameters, torch.ones(4, 2, 3))["bias"])
        kept.append(torch.func.jacrev(model)(torch.ones(2, 3)))

    found = recorded(tmp_path / "run", program, level)
    assert found.gaps() == []
    assert [tuple(one.shape) for one in kept] == [(4, 2, 1), (4, 1), (2, 1, 2, 3)]
    skipped = {row.site.slot for row in found.rows if row.flags & Flag.SKIPPED and not row.site.op}
    assert all(slot.startswith("grad_") for slot in skipped)
    assert len(found.of(slot="metric.loss")) == 2


@pytest.mark.parametrize("level", ["phase", "module", "op"])
def test_a_model_is_traced_scripted_and_made_lazily_as_without_us(tmp_path, level):
    def program(_):
        model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 1))
        train(model, torch.optim.SGD(model(torch.ones(2, 3)).grad_fn and model.parameters()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.trace(model.eval(), torch.ones(2, 3))(torch.ones(2, 3))
            torch.jit.script(model)(torch.ones(2, 3))
        torch.export.export(model, (torch.ones(2, 3),)).module()(torch.ones(2, 3))
        with torch.device("meta"):
            torch.nn.Linear(2, 2)(torch.ones(1, 2))

    found = recorded(tmp_path / "run", program, level)
    assert found.gaps() == []
    assert found.per_step(slot="metric.loss")[:2] == [1, 1]


@pytest.mark.parametrize("level", ["step", "phase", "module", "op"])
def test_sparse_gradients(tmp_path, level):
    model = nn.Embedding(5, 3, sparse=True)

    def program(_):
        optimizer = torch.optim.SparseAdam(model.parameters())
        for _ in range(2):
            model(torch.tensor([1, 2])).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    found = recorded(tmp_path / "run", program, level)
    assert found.gaps() == []
    assert len(set(found.roots.values())) == 3


def test_a_higher_order_operator_runs(tmp_path):
    from torch._higher_order_ops.map import map as mapped

    x, kept = torch.ones(3), []

    def program():
        kept.append(torch.cond(x.sum() > 1, lambda y: y + 1, lambda y: y - 1, (x,)))
        kept.append(mapped(lambda y: y * 2, torch.ones(2, 3)))

    found = ops_of(tmp_path, program)
    assert kept[0].tolist() == [2, 2, 2]
    assert kept[1].sum() == 12
    assert found.complete


def test_double_backward_and_a_function_of_ones_own(tmp_path):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return 2 * x * gradient

    model, kept = nn.Linear(1, 1, bias=False), []

    def program(_):
        y = Square.apply(model(torch.ones(1, 1))).sum()
        (slope,) = torch.autograd.grad(y, model.parameters(), create_graph=True)
        (y + slope.square().sum()).backward()
        kept.append(model.weight.grad)

    found = recorded(tmp_path / "run", program)
    assert found.gaps() == []
    assert [row.site.microbatch for row in found.of(slot="metric.loss")] == [0, 1]
    grads = [row.digest for row in found.of(step=1, slot="grad", phase="backward")]
    assert grads[-1] == fingerprint(kept[0]).sum


def test_a_written_parameter_names_its_writer(tmp_path):
    model = small()

    def program(_):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False), steps=1)
        model(next(data(1)))

    found = recorded(tmp_path / "run", program)
    made = found.one(step=1, op="aten.addmm", module="Sequential.0", slot="out.0")
    read = found.one(step=1, op="aten.relu", slot="in.0")
    assert read.writer == made.seq


def test_numpy_scalars_and_views_of_arrays_are_harmless(tmp_path):
    array = np.ones(3, np.float32)
    found = ops_of(tmp_path, lambda: torch.from_numpy(array) * np.float64(2))
    assert "aten.mul.Tensor" in found.ops(step=1)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_writes_its_statistics_in_training_alone(tmp_path, training):
    layer = nn.BatchNorm1d(3).train(training)
    found = ops_of(tmp_path, lambda: layer(torch.arange(12.0).reshape(4, 3)))
    rows = slots(found, "aten.native_batch_norm")
    assert {slot for slot in rows if slot.startswith("mutated")} == (
        {"mutated.0", "mutated.1"} if training else set()
    )
    if training:
        assert rows["mutated.0"].digest == fingerprint(layer.running_mean).sum


BETAS = {
    "addmm": ((2, 2), (2, 2), (2, 2)),
    "baddbmm": ((1, 2, 2), (1, 2, 2), (1, 2, 2)),
    "addbmm": ((2, 2), (1, 2, 2), (1, 2, 2)),
    "addmv": ((2,), (2, 2), (2,)),
    "addr": ((2, 2), (2,), (2,)),
}
"""Operation -> the shapes of what it takes."""


@pytest.mark.parametrize("beta", [0, 0.0, 1])
@pytest.mark.parametrize("op", BETAS)
def test_what_is_multiplied_by_a_beta_of_zero_is_no_input(tmp_path, op, beta):
    """Megatron gives `baddbmm` memory that nobody wrote, and a beta of 0."""

    def program():
        first, *others = BETAS[op]
        getattr(torch, op)(torch.empty(first), *map(torch.ones, others), beta=beta, alpha=0.5)

    found = ops_of(tmp_path, program).of(op=f"aten.{op}", step=1, module="")
    read = {row.site.slot for row in found if row.site.slot.startswith("in.")}
    assert read == ({"in.0", "in.1", "in.2"} if beta else {"in.1", "in.2"})


def test_a_beta_that_scales_nothing_is_only_a_number(tmp_path):
    """softplus has one, too."""
    found = slots(ops_of(tmp_path, lambda: nn.functional.softplus(torch.ones(2), beta=0)),
                  "aten.softplus")  # fmt: skip
    assert "in.0" in found
