"""What was saved comes back with the same bits, in any layout."""

import json
import pickle

import pytest
import safetensors.torch
import torch
from checkpoint_fakes import (
    VALUES,
    bits,
    blank_of,
    contents,
    files,
    rows,
    run,
    saved,
    state_of,
    whole_tensors,
)

from bitstep.checkpoint import Report, newest, restore, save, show, verify
from bitstep.errors import CheckpointError
from bitstep.fingerprint import fingerprint
from bitstep.state.roots import state_root
from bitstep.state.streams import Piece, TrainingState

DTYPES = [
    *["float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32"],
    *["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"],
    *["float4_e2m1fn_x2", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16"],
    *["uint8", "bool"],
]
FLAT = {"float8_e8m0fnu", "float4_e2m1fn_x2", "complex128", "complex32"}


def random_bits(dtype, shape, seed):
    kind = getattr(torch, dtype)
    count = torch.Size(shape).numel() * kind.itemsize
    raw = torch.randint(
        0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    raw = raw & 1 if dtype == "bool" else raw
    return raw.view(kind).reshape(shape)


def all_dtypes():
    tensors = {}
    for number, dtype in enumerate(DTYPES):
        tensors["parameters", f"{dtype}.matrix"] = random_bits(dtype, (5, 3), number)
        tensors["moments", f"{dtype}.scalar"] = random_bits(dtype, (), number + 100)
        tensors["moments", f"{dtype}.none"] = random_bits(dtype, (0, 3), number)
    return tensors


def back(checkpoint, tensors, world, dim=0):
    """Restore into blank states on `world` processes and compare all of it by bits."""
    states = [blank_of(tensors, rank, world, dim) for rank in range(world)]
    restored = run(world, lambda p: restore(checkpoint, states[p.rank], p))
    for rank, state in enumerate(states):
        assert contents(state) == contents(state_of(tensors, rank, world, dim=dim))
    return restored


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_checkpoint_of_any_world_comes_back_in_any_other(tmp_path, world):
    checkpoint = saved(tmp_path, world=world)
    root = verify(checkpoint).root
    for other in (1, 2, 4):
        for restored in back(checkpoint, whole_tensors(), other):
            assert (restored.step, restored.root, restored.world) == (20, root, world)


def test_the_root_does_not_depend_on_who_wrote(tmp_path):
    roots = {verify(saved(tmp_path / str(world), world=world)).root for world in (1, 2, 3, 4, 7)}
    prints = {f"{s}/{n}": fingerprint(t) for (s, n), t in whole_tensors().items()}
    assert roots == {state_root(prints, VALUES)}


def test_a_cut_along_another_dimension_comes_back(tmp_path):
    tensors = whole_tensors()
    run(3, lambda p: save(tmp_path, 20, state_of(tensors, p.rank, 3, dim=1), p))
    back(tmp_path / "step-00000020", tensors, 2, dim=0)
    back(tmp_path / "step-00000020", tensors, 4, dim=1)
    assert verify(tmp_path / "step-00000020").root == verify(saved(tmp_path / "b")).root


def test_a_process_may_hold_nothing(tmp_path):
    tensors = {("parameters", "w"): torch.arange(2.0)}
    checkpoint = saved(tmp_path, world=4, tensors=tensors)
    back(checkpoint, tensors, 3)
    assert (checkpoint / "rank-00003.safetensors").stat().st_size == 16


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_dtype_comes_back_by_bits(tmp_path):
    tensors = all_dtypes()
    checkpoint = saved(tmp_path, tensors=tensors)
    for world in (1, 2, 3):
        back(checkpoint, tensors, world)
    assert verify(checkpoint).tensors == 3 * len(DTYPES)


def test_nan_payloads_and_signed_zeros_come_back(tmp_path):
    payload = torch.tensor([0x7F81, -0x7F, 0x7FC1, -0x8000], dtype=torch.int16).view(torch.bfloat16)
    tensors = {("parameters", "w"): payload, ("moments", "m"): torch.tensor([-0.0, 0.0])}
    back(saved(tmp_path, tensors=tensors), tensors, 1)


def test_strided_and_conjugate_tensors_are_saved_as_they_read(tmp_path):
    strided = torch.arange(12.0).reshape(3, 4).t()
    conjugate = torch.tensor([1 + 2j, 3 - 4j]).conj()
    pieces = [
        Piece("parameters", name, tensor, rows(tensor, 0, 1)[1])
        for name, tensor in (("s", strided), ("c", conjugate))
    ]
    run(1, lambda p: save(tmp_path, 20, TrainingState(pieces, {}), p))
    plain = {
        ("parameters", "s"): strided.contiguous(),
        ("parameters", "c"): conjugate.resolve_conj(),
    }
    state = blank_of(plain)
    state.values = {}
    run(1, lambda p: restore(tmp_path / "step-00000020", state, p))
    assert [p.tensor.tolist() for p in state.pieces] == [strided.tolist(), conjugate.tolist()]


def test_a_restore_fills_strided_and_trainable_tensors_in_place(tmp_path):
    tensors = {("parameters", "w"): torch.arange(12.0).reshape(4, 3)}
    checkpoint = saved(tmp_path, tensors=tensors)
    live = torch.nn.Parameter(torch.zeros(3, 4).t())
    piece = Piece("parameters", "w", live, rows(live, 0, 1)[1])
    state = TrainingState([piece], {stream: {} for stream in VALUES})
    run(1, lambda p: restore(checkpoint, state, p))
    assert torch.equal(live, tensors["parameters", "w"])
    assert live.stride() == (1, 4)
    assert live.requires_grad
    assert live.grad_fn is None


def test_values_come_back_with_their_types_and_bits(tmp_path):
    checkpoint = saved(tmp_path)
    state = blank_of(whole_tensors())
    run(1, lambda p: restore(checkpoint, state, p))
    assert state.values == VALUES
    assert str(state.values["schedule"]["minus_zero"]) == "-0.0"
    assert type(state.values["schedule"]["position"]) is int


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_a_library_that_reads_safetensors_reads_the_files(tmp_path):
    tensors = all_dtypes()
    checkpoint = saved(tmp_path, world=1, tensors=tensors)
    loaded = safetensors.torch.load_file(checkpoint / "rank-00000.safetensors")
    for dtype in DTYPES:
        whole = tensors["parameters", f"{dtype}.matrix"]
        found = loaded[f"parameters/{dtype}.matrix@0,0"]
        if dtype in FLAT:
            assert found.tolist() == bits(whole).contiguous().reshape(-1).view(torch.uint8).tolist()
        else:
            assert (found.dtype, found.shape) == (whole.dtype, whole.shape)
            assert torch.equal(bits(found), bits(whole))


def test_the_bytes_of_a_checkpoint_are_a_function_of_the_state(tmp_path):
    one, other = saved(tmp_path / "a"), saved(tmp_path / "b")
    assert files(one) == files(other)
    assert sorted(files(one)) == [
        "COMPLETE",
        "index.json",
        "rank-00000.safetensors",
        "rank-00001.safetensors",
        "state.json",
    ]


def test_verify_and_show_say_what_is_there(tmp_path):
    checkpoint = saved(tmp_path)
    size = sum(len(content) for content in files(checkpoint).values())
    report = verify(checkpoint)
    assert report == Report(step=20, root=report.root, tensors=5, files=5, bytes=size)
    shown = {row.tensor: row for row in show(checkpoint)}
    assert list(shown) == [
        "buffers/router.bias",
        "moments/exp_avg/embed.weight",
        "moments/exp_avg/norm.weight",
        "parameters/embed.weight",
        "parameters/norm.weight",
        *sorted(VALUES),
    ]
    assert shown["parameters/embed.weight"][1:4] == ("float32", (13, 6), 312)
    assert shown["parameters/embed.weight"].parts == 2
    whole = whole_tensors()["parameters", "embed.weight"]
    assert shown["parameters/embed.weight"].digest == str(fingerprint(whole))


def test_an_omitted_stream_stays_as_it_is(tmp_path):
    checkpoint = saved(tmp_path)
    for stream in ("moments", "data"):
        state, blank = blank_of(whole_tensors()), blank_of(whole_tensors())
        run(1, lambda p, s=state, o=stream: restore(checkpoint, s, p, omit=o))
        for piece, other in zip(state.pieces, blank.pieces, strict=True):
            assert (piece.stream == stream) == torch.equal(bits(piece.tensor), bits(other.tensor))
        assert state.values == {k: {} if k == stream else v for k, v in VALUES.items()}


def test_a_stream_that_does_not_exist_cannot_be_omitted(tmp_path):
    checkpoint = saved(tmp_path)
    with pytest.raises(CheckpointError, match="unknown stream 'moment'"):
        run(1, lambda p: restore(checkpoint, blank_of(whole_tensors()), p, omit="moment"))


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    checkpoint = saved(tmp_path)

    def forbidden(*args, **kwargs):
        raise AssertionError("unpickled")

    for module, name in [
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (pickle, "_Unpickler"),
        (torch, "load"),
    ]:
        monkeypatch.setattr(module, name, forbidden)
    verify(checkpoint)
    assert newest(tmp_path) == (checkpoint, [])
    back(checkpoint, whole_tensors(), 2)


def test_what_is_json_is_readable_as_json(tmp_path):
    checkpoint = saved(tmp_path)
    assert json.loads((checkpoint / "state.json").read_text()) == VALUES
    index = json.loads((checkpoint / "index.json").read_text())
    assert (index["format"], index["definition"]) == (1, "bitstep-1")
    assert (index["step"], index["world"]) == (20, 2)
