"""The compiled operations give the rows of `operations.py`, cell by cell, in any program."""

import gc
import shutil
import weakref

import numpy as np
import pytest
import torch
from recording_fakes import recorded, small
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bitstep.errors import RunError
from bitstep.launch.native import compile_operations
from bitstep.observe import native, operations
from bitstep.records import Flag


@pytest.fixture(autouse=True)
def compiled():
    if shutil.which("c++") is None or shutil.which("ninja") is None:
        pytest.skip("there is no compiler here")
    compile_operations()


def loop(step, parameters=None):
    """A program: the function is a training step, which gives back its loss."""

    def program(_):
        torch.manual_seed(0)
        model = small()
        optimizer = torch.optim.AdamW(model.parameters() if parameters is None else parameters)
        for _ in range(2):
            loss = model(torch.ones(3, 3)).sum() + step()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return program


def views():
    x = torch.arange(4096.0).view(64, 64)
    parts = [
        x.t(),
        x[:, ::2],
        x[3:5],
        x[:, :48],
        x[:1].expand(64, 64),
        x.view(4, 16, 64).permute(2, 0, 1),
    ]
    other = x.view(torch.int32)
    return sum((part + 1).sum() for part in parts) + (other * 2).sum() * 0


def large_and_carried():
    x = torch.randn(128, 128) * 2
    y = x.t() @ x + x.view(64, 256).sum()
    return (y.view(-1)[:8192].sum() + F.gelu(y).sum() + y.t().contiguous().sum()) * 1e-9


def in_place_and_out():
    x, out = torch.ones(3000), torch.empty(3000)
    torch.add(x, 2, out=out)
    x.add_(out).mul_(0.5)
    x[10:20].zero_()
    x.copy_(out)
    torch.aminmax(x, out=(torch.empty(()), torch.empty(())))
    return x.sum()


def memory_that_nobody_wrote():
    x = torch.empty(4096)
    y = x.clone()
    x[:100].fill_(1.0)
    y.fill_(2.0)
    return x[:100].sum() + y.sum()


def dtypes():
    found = torch.zeros(())
    for dtype in (
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int8,
        torch.int64,
        torch.bool,
    ):
        found = found + torch.ones(17, dtype=dtype).to(torch.float32).sum()
    z = torch.complex(torch.ones(9), torch.ones(9))
    return found + (z.conj() * z).real.sum() + torch.view_as_real(z).sum() + z.conj().imag.sum()


def no_elements_and_no_dimensions():
    x = torch.ones(0, 3)
    return (x * 2).sum() + torch.tensor(3.0) * torch.ones(()).add(1)


def several_results():
    x = torch.arange(60.0).view(6, 10)
    values, places = x.topk(3)
    first, second = x.split([2, 4])
    q, r = torch.linalg.qr(x.t())
    return (
        values.sum()
        + places.sum()
        + first.sum()
        + second.sum()
        + (q @ r).sum()
        + sum(x.unbind(0)).sum()
    )


def numbers():
    x = torch.tensor([3.0, 4.0])
    return (
        x.sum() * x[0].item()
        + int(torch.tensor(3))
        + bool(torch.tensor(True))
        + complex(torch.tensor(2j)).imag
    )


def drawn():
    x = F.dropout(torch.ones(50), 0.5) + torch.randn(50) + torch.randperm(50)
    return x.sum() + torch.ones(4).bernoulli_(0.5, generator=torch.Generator().manual_seed(1)).sum()


def indices():
    x = torch.arange(12.0).view(3, 4).clone()
    x[:, torch.tensor([0, 2])] = 7.0
    x[torch.tensor([True, False, True])] += 1
    return x.sum() + x[None, torch.tensor([1])].sum() + F.pad(x, (1, 1)).sum()


def normalized():
    norm = nn.BatchNorm1d(4)
    x = norm(torch.arange(12.0).view(3, 4))
    return x.sum() + F.layer_norm(x, (4,)).sum() + nn.BatchNorm1d(4).eval()(x).sum()


def convolved():
    x = torch.ones(2, 3, 8, 8).to(memory_format=torch.channels_last)
    return nn.Conv2d(3, 4, 3)(x).sum() + F.interpolate(x, scale_factor=2).sum()


def attended():
    q, k, v = torch.ones(2, 16, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).sum()


def transformed():
    x = torch.arange(12.0).view(3, 4)
    slope = torch.func.grad(lambda t: (t**2).sum())(x)
    return torch.vmap(lambda row: row.sum() * 2)(x).sum() + slope.sum()


def of_other_kinds():
    sparse = torch.eye(3).to_sparse()
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    meta = torch.ones(3, device="meta") * 2
    with torch.inference_mode():
        torch.ones(3000).mul(2).add_(1)
    return (sparse @ torch.ones(3, 3)).sum() + nested.sum() + meta.numel()


def foreign():
    array = np.ones(4096, np.float32)
    x = torch.from_numpy(array)
    y = x * 2
    x.add_(1)
    array += 1
    return (x * y).sum() + x.sum()


def recomputed():
    x = torch.ones(4, 4, requires_grad=True)
    return checkpoint(lambda t: F.dropout(t @ t, 0.5).relu(), x, use_reentrant=False).sum()


def twice():
    x = torch.ones(5, requires_grad=True)
    (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return (slope**2).sum()


def cast():
    with torch.autocast("cpu", torch.bfloat16):
        return (torch.ones(8, 8) @ torch.ones(8, 8)).sum().float()


def raised():
    with pytest.raises(RuntimeError, match="must match"):
        torch.ones(2) + torch.ones(3)
    with pytest.raises(RuntimeError):
        torch.ones(2, 2).view(3)
    with pytest.raises(RuntimeError):
        torch.linalg.inv(torch.zeros(2, 2))
    return torch.ones(()).sum()


def without_a_version():
    with torch.inference_mode():
        x = torch.ones(3000)
    x.data = torch.zeros(3000)
    return (x + 1).sum()


def many_runs():
    x = torch.arange(2.0**19).view(8192, 64)
    return x[:, :32].sum() + x[:4096, :32].sum()


STEPS = [
    views, large_and_carried, in_place_and_out, memory_that_nobody_wrote, dtypes,
    no_elements_and_no_dimensions, several_results, numbers, drawn, indices, normalized, convolved,
    attended, transformed, of_other_kinds, foreign, recomputed, twice, cast, raised,
    without_a_version, many_runs,
]  # fmt: skip


def rows_of(run, program, **options):
    """But for their writers: those of memory that was freed depend on where the next piece lies."""
    found = recorded(run, program, **options)
    assert found.gaps() == []
    return [row._replace(writer=-1) for row in found.rows]


@pytest.mark.parametrize("rehash", [False, True], ids=["carried", "rehashed"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_both_give_the_same_rows(tmp_path, monkeypatch, step, rehash):
    step()  # What torch does once in a process.
    compiled = rows_of(tmp_path / "compiled", loop(step), rehash=rehash)
    monkeypatch.setattr(native, "load", lambda: None)
    python = rows_of(tmp_path / "python", loop(step), rehash=rehash)
    assert len(compiled) > 100
    assert compiled == python


def test_both_name_the_same_writers(tmp_path, monkeypatch):
    kept = []

    def step():
        x = torch.ones(64, 64) * 2
        y = x.t().contiguous() + x
        parts = y[:, :16].mul_(3), y.view(-1)[::2] + 1
        kept.extend((x, y, *parts, *torch._foreach_add([x, y, x[1:], y[2:], x[3]], 1.0)))
        total = sum((one.sum() for one in kept[-5:]), start=y.sum())
        torch._foreach_mul_(kept[-5:], 2.0)
        return total + kept[-1].sum()

    ops = {
        f"aten.{name}"
        for name in ("mul_.Tensor", "add.Tensor", "_foreach_add.Scalar", "_foreach_mul_.Scalar")
    }

    def writers(run):
        rows = recorded(run, loop(step)).of(module="", step=1)
        named = [row for row in rows if row.site.op in ops and row.site.phase != "optimizer"]
        return [(row.site.op, row.site.slot, row.seq, row.writer) for row in named]

    compiled = writers(tmp_path / "compiled")
    monkeypatch.setattr(native, "load", lambda: None)
    assert compiled == writers(tmp_path / "python")
    assert {op for op, *_ in compiled} == ops
    assert any(writer >= 0 for *_, writer in compiled)


def test_a_program_of_ours_in_these_rows_is_not_always_the_same(tmp_path):
    assert rows_of(tmp_path / "a", loop(views)) != rows_of(tmp_path / "b", loop(dtypes))


def test_nearly_all_operations_of_a_training_step_are_compiled(tmp_path, monkeypatch):
    by_python = []
    dispatch = operations.Operations.__torch_dispatch__

    def noted(self, func, types, args=(), kwargs=None):
        by_python.append(func)
        return dispatch(self, func, types, args, kwargs)

    monkeypatch.setattr(operations.Operations, "__torch_dispatch__", noted)
    found = recorded(tmp_path / "run", loop(large_and_carried))
    counts = sum(row.digest for row in found.of(slot="count.ops"))
    assert len(by_python) < counts / 5


@pytest.mark.parametrize("where", ["digest_of_text", "slot_of", "runs_of"])
def test_a_failure_inside_lowers_the_level_and_the_program_goes_on(tmp_path, monkeypatch, where):
    calls = []
    of = {"digest_of_text": native.schemas, "slot_of": native, "runs_of": native}[where]
    original = getattr(of, where)

    def fails_once(*args):
        calls.append(args)
        if len(calls) == 2:
            raise ValueError("on purpose")
        return original(*args)

    monkeypatch.setattr(of, where, fails_once)
    monkeypatch.setattr(native, "_slots", {})
    native.schemas.texts.clear()
    found = recorded(tmp_path / "run", loop(several_results))
    assert calls
    assert found.complete
    assert found.steps == [1, 2]
    # A layout that is not known is Python's to look at; nothing is lost.
    expected = (
        [] if where == "runs_of" else ["from here on at most level module: ValueError: on purpose"]
    )
    assert found.gaps() == expected


def test_with_strict_it_is_raised_in_the_program(tmp_path, monkeypatch):
    monkeypatch.setattr(native.schemas, "digest_of_text", lambda text: 1 / 0)
    native.schemas.texts.clear()
    with pytest.raises(Exception, match="division by zero"):
        recorded(tmp_path / "run", loop(views), strict=True)


def test_an_operation_that_raises_is_a_row_and_raises(tmp_path):
    found = recorded(tmp_path / "run", loop(raised))
    assert [row.site.op for row in found.of(step=1, slot="raised")] == [
        "aten.add.Tensor",
        "aten._linalg_check_errors",
    ]
    assert all(row.flags & Flag.RAISED for row in found.of(slot="raised"))


def test_a_recorder_that_ended_is_not_kept(tmp_path):
    kept = []

    def program(recorder):
        kept.append(weakref.ref(recorder._operations))
        assert "_native" in vars(recorder._operations)
        loop(views)(recorder)

    recorded(tmp_path / "run", program)
    recorded(tmp_path / "other", loop(views))  # The last one of a process is at hand.
    gc.collect()
    assert kept[0]() is None


def test_another_source_is_another_file(tmp_path, monkeypatch):
    before = native.built()
    copy = tmp_path / "native"
    shutil.copytree(native.HERE, copy, ignore=shutil.ignore_patterns("built", "__pycache__"))
    monkeypatch.setattr(native, "HERE", copy)
    assert native.built().name == before.name
    with (copy / "rows.h").open("a") as file:
        file.write("// more\n")
    assert native.built().name != before.name


BUILT = native.built()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Where nothing has been built yet."""
    copy = tmp_path / "native"
    shutil.copytree(native.HERE, copy, ignore=shutil.ignore_patterns("built", "__pycache__"))
    monkeypatch.setattr(native, "HERE", copy)
    native.load.cache_clear()
    yield copy
    native.load.cache_clear()


def damage():
    native.built().parent.mkdir(exist_ok=True)
    native.built().write_bytes(b"\x7fELF no library")
    native.load.cache_clear()


def test_what_was_not_built_or_cannot_be_loaded_is_done_without(tmp_path, elsewhere):
    assert native.load() is None
    damage()
    assert native.load() is None
    assert rows_of(tmp_path / "run", loop(views))


def test_a_damaged_file_is_built_again(elsewhere, monkeypatch):
    damage()
    made = elsewhere / "made.so"
    made.write_bytes(BUILT.read_bytes())
    monkeypatch.setattr("bitstep.launch.native._compile", lambda folder: made)
    assert compile_operations() == native.built()
    assert native.load() is not None


def test_what_is_compiled_and_cannot_be_loaded_is_said(elsewhere, monkeypatch):
    made = elsewhere / "made.so"
    made.write_bytes(b"no library")
    monkeypatch.setattr("bitstep.launch.native._compile", lambda folder: made)
    with pytest.raises(RunError, match="was compiled and cannot be loaded: record without it"):
        compile_operations()


def test_what_does_not_compile_is_said_in_one_line(elsewhere):
    (elsewhere / "operations.cpp").write_text("int main( {\n")
    with pytest.raises(RunError, match=r"^cannot compile: [^\n]* error: [^\n]*$"):
        compile_operations()
    assert native.load() is None
    assert not native.built().exists()


def test_without_a_compiler_that_is_said(elsewhere, monkeypatch):
    monkeypatch.setenv("PATH", str(elsewhere))
    with pytest.raises(RunError, match=r"^cannot compile: [^\n]*(inja|c\+\+)[^\n]*$"):
        compile_operations()


def test_a_place_that_cannot_be_written_is_said(elsewhere):
    (elsewhere / "built").write_text("a file")
    with pytest.raises(RunError, match=r"cannot write .*: compile as who installed bitstep"):
        compile_operations()


def test_an_interrupt_while_python_is_asked_ends_the_program(tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(native, "runs_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recorded(tmp_path / "run", loop(views))
