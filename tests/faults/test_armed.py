import json

import pytest
import torch
from fault_fakes import FakeRecorder, armed, train
from torch import nn

from bitstep.faults.receipts import read_receipts
from bitstep.faults.state import first_difference


def rows_of(text, works=False, late=False):
    """What the fake recorder saw of three steps with a flip, entered before or after arming."""
    recorder = FakeRecorder(works)
    if late:
        with armed(text) as found, recorder:
            train()
    else:
        with recorder, armed(text) as found:
            train()
    return recorder.rows, [receipt.status for receipt in found.receipts]


def first_parted(clean, faulty):
    """Index, and whether what the call was given and what it wrote is the same."""
    assert [row[0] for row in clean] == [row[0] for row in faulty]
    for number, (a, b) in enumerate(zip(clean, faulty, strict=True)):
        if a != b:
            return number, a[1] == b[1], a[2] == b[2]
    return None


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("works", [False, True])
def test_a_recorder_sees_a_flipped_output_as_the_output_of_its_call(late, works):
    clean, _ = rows_of("none", works, late)
    faulty, status = rows_of("output step=2 op=aten.gelu element=3 bit=20", works, late)
    assert status == ["fired"]
    number, same_in, same_out = first_parted(clean, faulty)
    assert clean[number][0] == "aten.gelu"
    assert same_in
    assert not same_out
    assert [row[0] for row in clean[:number]].count("aten.gelu") == 1


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("works", [False, True])
def test_a_recorder_sees_a_stray_write_in_the_next_call_and_not_in_the_one_before(late, works):
    clean, _ = rows_of("none", works, late)
    # Call 2 is the gelu of the first layer; call 3 a view; call 4 the second layer reads it.
    faulty, status = rows_of("stray step=2 occurrence=2 tensor=output:2:0 bit=20", works, late)
    assert status == ["fired"]
    number, same_in, _ = first_parted(clean, faulty)
    gelus = [n for n, row in enumerate(clean) if row[0] == "aten.gelu"]
    assert number == gelus[1] + 2
    assert clean[number][0] == "aten.addmm"
    assert not same_in


def test_a_flipped_input_is_seen_by_the_kernel_and_not_by_the_recorder():
    clean, _ = rows_of("none")
    faulty, _ = rows_of("input step=1 op=aten.addmm output=1 bit=20")
    _, same_in, same_out = first_parted(clean, faulty)
    assert same_in
    assert not same_out


def test_a_mode_that_leaves_is_the_one_that_leaves_and_comers_go_between():
    first, second = FakeRecorder(), FakeRecorder()
    with armed("none"):
        train(1)
        with first:
            with second:
                stack = [type(m).__name__ for m in _stack()]
                assert stack == ["Below", "FakeRecorder", "FakeRecorder", "Above"]
            assert _stack()[1:-1] == [first]
        assert [type(m).__name__ for m in _stack()] == ["Below", "Above"]
    assert _stack() == []


def _stack():
    return torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_modes_that_torch_takes_off_for_a_while_come_back_in_their_order():
    recorder = FakeRecorder()
    with armed("none"), recorder:
        train(1)
        before = _stack()
        with torch.utils._python_dispatch._disable_current_modes():
            assert _stack() == []
        assert _stack() == before
        assert before[1] is recorder


def test_arming_without_a_flip_changes_no_bit_and_leaves_no_hook():
    bare = train()
    with armed("none") as found:
        assert train() == bare
        assert found.receipts == []
    assert train() == bare
    assert torch.autograd.backward.__module__ == "torch.autograd"
    assert not nn.modules.module._global_forward_pre_hooks


POSITIONS = ["before-forward", "after-forward", "after-backward", "before-optimizer"]


@pytest.mark.parametrize("position", [*POSITIONS, "after-optimizer"])
@pytest.mark.parametrize("tensor", ["param:0.weight", "exp_avg:2.bias", "grad:2.weight"])
def test_a_stray_write_at_a_position_changes_the_state_as_its_bytes_say(position, tensor, tmp_path):
    with armed("none", tmp_path / "clean"):
        train()
    text = f"stray step=2 position={position} tensor={tensor} element=1 bit=21"
    with armed(text, tmp_path / "faulty"):
        train()
    receipt = read_receipts(tmp_path / "faulty")[0]
    difference = first_difference(tmp_path / "clean", tmp_path / "faulty")
    if tensor.startswith("grad") and position in ("before-forward", "after-forward"):
        assert receipt["reason"] == "there is no grad:2.weight at that moment"
        assert difference is None
        return
    assert int(receipt["before"], 16) ^ int(receipt["after"], 16) == 1 << 13
    last = position == "after-optimizer"
    if tensor.startswith("grad") and last:
        # It is zeroed next: of gradients alone the next update is what counts.
        assert difference is None
        return
    assert difference["step"] == 2
    assert receipt["site"]["phase"] == ("optimizer" if last else receipt["site"]["phase"])


def test_the_receipt_names_the_first_call_that_reads_the_byte(tmp_path):
    text = "stray step=2 position=before-forward tensor=param:2.weight element=1 bit=21"
    with armed(text, tmp_path):
        train()
    receipt = read_receipts(tmp_path)[0]
    assert receipt["consumer"] == {
        "status": "read",
        "slot": "in.2",
        "step": 2,
        "rank": 0,
        "phase": "forward",
        "module": "Sequential.2",
        "op": "aten.addmm",
        "call": 4,
    }


def test_a_byte_that_is_overwritten_before_it_is_read_has_no_effect(tmp_path):
    class Scratch(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("scratch", torch.zeros(4), persistent=False)

        def forward(self, x):
            self.scratch.fill_(2.0)
            return self.layer(x * self.scratch)

    def states(text, folder):
        with armed(text, tmp_path / folder):
            train(make=Scratch)

    states("none", "clean")
    states("stray step=2 position=before-forward tensor=buffer:scratch bit=21", "faulty")
    receipt = read_receipts(tmp_path / "faulty")[0]
    assert (receipt["consumer"]["status"], receipt["consumer"]["op"]) == (
        "overwritten",
        "aten.fill_",
    )
    assert first_difference(tmp_path / "clean", tmp_path / "faulty") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("output step=2 op=aten.gelu occurrence=5", "the step ended after 1 calls that count"),
        ("output step=2 op=aten.gelu output=1", "aten.gelu has 1 such tensors"),
        ("output step=2 op=aten.gelu element=99", r"no element 99 in a tensor of shape (5, 8)"),
        ("output step=2 op=aten.gelu bit=40", "no bit 40 in float32"),
    ],
)
def test_a_flip_that_cannot_be_is_unreached_and_says_why(text, reason, tmp_path):
    with armed(text, tmp_path):
        train()
    receipt = read_receipts(tmp_path)[0]
    assert (receipt["status"], receipt["reason"]) == ("unreached", reason)


def test_a_flip_of_another_rank_or_a_later_step_leaves_no_receipt(tmp_path):
    for text in ("output step=9 op=aten.gelu", "output step=1 rank=1 op=aten.gelu"):
        with armed(text, tmp_path):
            train()
    assert read_receipts(tmp_path) == []


def test_the_calls_of_a_step_are_listed_with_what_they_write(tmp_path):
    with armed("none", tmp_path, calls=True):
        train(2)
    text = (tmp_path / "calls-rank-00000.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    first = next(line for line in lines if line["step"] == 2)["calls"]
    assert [(call[2], call[1]) for call in first[:5]] == [
        ("aten.t", "Sequential.0"),
        ("aten.addmm", "Sequential.0"),
        ("aten.gelu", "Sequential.1"),
        ("aten.t", "Sequential.2"),
        ("aten.addmm", "Sequential.2"),
    ]
    assert first[2][3][0][:3] == ["out.0", "float32", 40]
    assert first[2][3][0][3] in first[4][4]
    assert {call[0] for call in first} == {"forward", "backward", "between", "optimizer"}
