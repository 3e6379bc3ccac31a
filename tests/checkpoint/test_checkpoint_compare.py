"""Two checkpoints byte by byte: the same state in any layout, and every difference by name."""

import pytest
import torch

from bitstep.checkpoint import save
from bitstep.checkpoint.compare import differing_tensors
from bitstep.records import Box
from bitstep.state.processes import Processes
from bitstep.state.streams import Piece, TrainingState, start_values

ALONE = Processes(rank=0, world=1)


def saved(folder, change=lambda tensors, values: None):
    tensors = {
        "weight": torch.arange(12, dtype=torch.float32).reshape(4, 3),
        "nan": torch.tensor([float("nan"), -0.0]),
    }
    values = start_values(seed=7)
    change(tensors, values)
    pieces = [
        Piece("parameters", name, t, Box(tuple(t.shape), (0,) * t.ndim, tuple(t.shape)))
        for name, t in tensors.items()
    ]
    return save(folder, 4, TrainingState(pieces, values), ALONE)


def test_equal_states_have_no_difference(tmp_path):
    assert differing_tensors(saved(tmp_path / "a"), saved(tmp_path / "b")) == ()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t, v: t["weight"].view(torch.int32)[1, 1].bitwise_xor_(1), "parameters/weight"),
        (lambda t, v: t["nan"].view(torch.int32)[0].bitwise_xor_(1), "parameters/nan"),
        (lambda t, v: t["nan"][1].neg_(), "parameters/nan"),
        (lambda t, v: t.update(weight=t["weight"].reshape(3, 4)), "parameters/weight"),
        (lambda t, v: t.update(weight=t["weight"].double()), "parameters/weight"),
        (lambda t, v: t.pop("weight"), "parameters/weight"),
        (lambda t, v: v["data"].update(position=1), "data"),
        (lambda t, v: v["data"].update(position=0.0), "data"),
    ],
)
def test_one_difference_is_named_from_both_sides(tmp_path, change, named):
    plain, changed = saved(tmp_path / "a"), saved(tmp_path / "b", change)
    assert differing_tensors(plain, changed) == (named,)
    assert differing_tensors(changed, plain) == (named,)
