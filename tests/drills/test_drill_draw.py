import json
from collections import Counter

import pytest

from bitstep.errors import RunError
from bitstep.investigate.drill_draw import draw, read_program

MM = ["backward", "", "aten.mm", [["out.0", "float32", 12, 3]], [1, 2]]
CALLS = [
    ["forward", "Net.0", "aten.empty", [["out.0", "float32", 12, 1]], []],
    ["forward", "Net.0", "aten.t", [], []],
    ["forward", "Net.0", "aten.addmm", [["out.0", "bfloat16", 6, 2]], [1]],
    *[MM] * 50,
    ["optimizer", "", "aten.add_", [["mutated.0", "float32", 4, 4]], [3, 4]],
]


@pytest.fixture
def program(tmp_path):
    lines = [{"step": step, "calls": calls} for step in (1, 2) for calls in (CALLS[:3], CALLS[3:])]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "calls-rank-00000.jsonl").write_text(text)
    tensors = {
        "param:0.w": ["float32", 4],
        "grad:0.w": ["float32", 4],
        "exp_avg:0.w": ["float32", 4],
    }
    (tmp_path / "tensors-rank-00000.json").write_text(json.dumps(tensors))
    return read_program(tmp_path)


def test_a_fault_depends_on_seed_and_number_alone(program):
    again = [draw(program, 7, number) for number in range(50)]
    assert [draw(program, 7, number) for number in range(50)] == again
    assert [draw(program, 8, number) for number in range(50)] != again


def test_every_other_fault_is_a_stray_write_and_targets_are_even(program):
    flips = [draw(program, 0, number) for number in range(800)]
    assert Counter(flip.kind for flip in flips) == {"output": 400, "stray": 400}
    targets = Counter(f.tensor.partition(":")[0] for f in flips if f.kind == "stray")
    # Moments are hit from the second step on only.
    assert set(targets) == {"param", "grad", "exp_avg", "output"}
    assert min(targets.values()) > 40


def test_a_rare_operation_is_hit_as_often_as_a_common_one(program):
    ops = Counter(draw(program, 0, number).op for number in range(0, 1200, 2))
    assert set(ops) == {"aten.addmm", "aten.mm", "aten.add_"}
    assert min(ops.values()) > 150


def test_a_stray_write_to_an_output_comes_before_its_last_reader(program):
    flips = [draw(program, 0, number) for number in range(1, 800, 2)]
    outputs = [flip for flip in flips if flip.tensor.startswith("output")]
    for flip in outputs:
        call = int(flip.tensor.split(":")[1])
        assert call <= flip.occurrence < len(CALLS)
        assert CALLS[call][2] in ("aten.addmm", "aten.mm")
    assert outputs


def test_elements_and_bits_exist(program):
    for number in range(0, 600, 2):
        flip = draw(program, 0, number)
        elements, bits = {"aten.addmm": (6, 16), "aten.mm": (12, 32), "aten.add_": (4, 32)}[flip.op]
        assert flip.element < elements
        assert flip.bit < bits


def test_a_program_that_trained_nothing_is_refused(tmp_path):
    with pytest.raises(RunError, match="the program trained nothing"):
        read_program(tmp_path)
