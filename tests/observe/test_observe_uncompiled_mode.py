"""The dispatch mode has no wrapper of torch's that would keep dynamo out: `uncompiled` does."""

import sys

import pytest
import torch
from recording_fakes import recorded

from bitstep.observe.operations import Operations

HERE = sys.modules[Operations.__module__].__file__


def frames_tried():
    """The files of the frames that dynamo has looked at."""
    from torch._dynamo.convert_frame import input_codes

    return {code.co_filename for ref in input_codes.seen if (code := ref()) is not None}


@pytest.mark.filterwarnings("ignore")  # torch's own, of graph breaks.
def test_dynamo_compiles_nothing_of_the_mode_where_a_compiled_frame_calls_an_op_in_c(tmp_path):
    def by_cosine(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return sorted([y.sum(), y.mean()], key=lambda value: float(value.cos()))[0]

    def program(recorder):
        torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
        torch.compile(by_cosine, backend="eager")(torch.ones(3))

    torch._dynamo.reset()
    found = recorded(tmp_path / "run", program)
    assert "aten._local_scalar_dense" in found.ops()
    assert __file__ in frames_tried()
    assert HERE not in frames_tried()
