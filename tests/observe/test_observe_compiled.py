"""Compiled regions are seen at their boundary, by stable names, and stay compiled."""

import gc
import importlib
import json
import os
import subprocess
import sys
import types
import weakref
from pathlib import Path

import pytest
import torch

from bitstep.observe import compiled, dynamo
from bitstep.observe.compiled import Region, Regions
from bitstep.observe.imported import when_imported
from bitstep.observe.undo import Undo

PROGRAM = Path(__file__).with_name("compiled_program.py")
FORWARD, REST = "compiled_program.py:Net.forward[0]", "compiled_program.py:Net.forward[1]"


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    """The same program bare, then watched: from an empty cache, and from a full one."""
    caches = {"cold": tmp_path_factory.mktemp("cold"), "warm": tmp_path_factory.mktemp("warm")}
    return {
        "bare": run("bare", caches["warm"]),
        "watched": run("watched", caches["cold"]),
        "again": run("watched", caches["cold"]),
    }


def run(arm, cache):
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(PROGRAM.parents[2]),
    }
    command = [sys.executable, str(PROGRAM), arm]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_a_watched_region_stays_compiled_with_the_bits_of_a_bare_one(arms):
    for key in ("bits", "graphs", "extern"):
        assert arms["watched"][key] == arms["bare"][key], key
    assert arms["watched"]["graphs"] == 2


@pytest.mark.long
def test_forward_and_backward_of_a_region_have_one_name(arms):
    order = [tuple(seen[:2]) for seen in arms["watched"]["seen"]]
    assert order == [(FORWARD, False), (REST, False), (REST, True), (FORWARD, True)] * 3
    assert arms["watched"]["gaps"] == []


@pytest.mark.long
def test_names_and_digests_are_those_of_a_run_that_loads_its_graphs_from_a_cache(arms):
    assert arms["again"]["hits"] >= 2
    assert arms["again"]["seen"] == arms["watched"]["seen"]
    assert arms["again"]["bits"] == arms["watched"]["bits"]


@pytest.mark.long
def test_what_a_region_gives_is_what_the_next_one_gets(arms):
    first, second = arms["watched"]["seen"][:2]
    outputs_of_first = {digest for _, digest in first[4]}
    assert {digest for _, digest in second[2]} & outputs_of_first
    assert [len(mutated) for mutated in (first[3], second[3])] == [1, 1], "the buffer is written"


@pytest.mark.long
def test_kernels_called_by_a_region_are_inside_of_it(arms):
    inside = arms["watched"]["inside"]
    assert {"aten.addmm.out", "aten.mm.out"} <= set(inside)
    assert not {"aten.addmm.out", "aten.mm.out"} & set(arms["watched"]["outside"])


@pytest.mark.long
def test_the_hook_of_a_compiled_root_runs_at_every_call(arms):
    assert arms["watched"]["roots"] == ["Net"] * 3


@pytest.mark.long
def test_undo_puts_back_what_was_there(arms):
    assert arms["watched"]["after_undo"] == 0
    assert arms["watched"]["restored"] == [
        "torch._inductor.output_code",
        "torch._inductor.output_code",
        "torch.nn.modules.module",
        False,
    ]


@pytest.mark.long
def test_watching_imports_nothing(arms):
    assert arms["watched"]["imported_early"] == [False, False]


# -- without a compiler ----------------------------------------------------------------------


class Graph:
    """As inductor's CompiledFxGraph, as far as it is used."""

    def __init__(self, function, backward=False, writes=(), boxed=False):
        self.boxed = boxed
        self.function, self.mutated_input_idxs = function, writes
        self.fx_kwargs = {"is_backward": backward}

    def post_compile(self, *args):
        return None

    def __call__(self, inputs):
        if self.boxed:
            return self.function(inputs)
        given = list(inputs)
        inputs.clear()
        return self.function(*given)


@pytest.fixture
def watched(monkeypatch):
    """Regions that watch `Graph`, and what they told."""
    module = types.ModuleType("torch._inductor.output_code")
    module.CompiledFxGraph = type("CompiledFxGraph", (Graph,), dict(vars(Graph)))
    module.__spec__ = None
    monkeypatch.setitem(sys.modules, "torch._inductor.output_code", module)
    told, gaps, undo = [], [], Undo()
    regions = Regions(
        lambda region, inputs: (told.append(("begins", region, [at for at, _ in inputs])), 7)[1],
        lambda region, given, mutated, outputs: told.append(
            ("ends", given, [at for at, _ in mutated], outputs and [at for at, _ in outputs])
        ),
        lambda: True,
    )
    regions.watch(undo, gaps.append)
    yield module.CompiledFxGraph, regions, told, gaps, undo
    undo.all()


def test_inputs_outputs_and_written_inputs_are_told_by_their_positions(watched):
    graph, regions, told, gaps, _ = watched
    one = graph(lambda a, n, b: (None, a + b, n), writes=(2,))
    one([torch.ones(2), 3, torch.ones(2)])
    assert told == [("begins", Region("compiled[0]", False), [0, 2]), ("ends", 7, [2], [1])]
    assert (regions.inside, regions.count, gaps) == (0, 1, [])


def test_inside_is_above_0_only_while_a_region_runs(watched):
    graph, regions, *_ = watched
    depths = []
    graph(lambda: depths.append(regions.inside))([])
    assert (depths, regions.inside) == ([1], 0)


def test_a_region_that_raises_ends_without_outputs(watched):
    graph, regions, told, *_ = watched
    with pytest.raises(ZeroDivisionError):
        graph(lambda: 1 // 0)([])
    assert told[-1] == ("ends", 7, [], None)
    assert regions.inside == 0


def test_no_input_lives_longer_than_without_us(watched):
    graph, *_ = watched
    inputs = [torch.ones(2)]
    last = weakref.ref(inputs[0])

    def function(given):
        given.clear()  # as the code that inductor writes does
        return last() is not None

    assert graph(function, boxed=True)(inputs) is False


PAIRED = [("[0]", False), ("[0].1", False), ("[0].1", True), ("[0]", True)]
IN_TURN = [("[0]", False), ("[0]", True), ("[0].1", False), ("[0].1", True)]


@pytest.mark.parametrize(
    ("numbers", "expected"), [((4, 5, 5, 4), PAIRED), ((None, None, None, None), IN_TURN)]
)
def test_parts_of_one_compile_share_a_name_with_their_backward(
    watched, monkeypatch, numbers, expected
):
    graph, regions, *_ = watched
    monkeypatch.setattr(torch._guards.CompileContext, "current_compile_id", lambda: "0/0")
    graphs = [graph(None, backward=backward) for _, backward in expected]
    for one, number in zip(graphs, numbers, strict=True):
        one.post_compile((), (), {"graph_id": number})
    names = [regions._names.of(one) for one in graphs]
    assert names == [Region(f"compiled{name}", backward) for name, backward in expected]


def test_a_name_dies_with_its_graph(watched):
    graph, regions, *_ = watched
    graph(lambda: None)([])
    gc.collect()
    assert regions._names._graphs == {}


def test_a_torch_without_the_boundary_is_a_sentence_for_the_gaps(monkeypatch):
    module = types.ModuleType("torch._inductor.output_code")
    module.__spec__ = None
    monkeypatch.setitem(sys.modules, "torch._inductor.output_code", module)
    undo, gaps = Undo(), []
    Regions(lambda *_: None, lambda *_: None, lambda: True).watch(undo, gaps.append)
    undo.all()
    assert gaps == [
        "torch._inductor.output_code is not observed: AttributeError: module "
        "'torch._inductor.output_code' has no attribute 'CompiledFxGraph'"
    ]


def test_what_follows_a_graph_break_counts_under_the_name_of_its_function():
    def torch_dynamo_resume_in_forward_at_35():
        return None

    code = torch_dynamo_resume_in_forward_at_35.__code__.replace(
        co_filename="/somewhere/model.py", co_qualname="Net.torch_dynamo_resume_in_forward_at_35"
    )
    assert compiled._readable(code) == "model.py:Net.forward"


def test_generated_code_is_told_without_its_running_number():
    code = run.__code__.replace(co_filename="<eval_with_key>.11", co_qualname="forward")
    assert compiled._readable(code) == "<eval_with_key>:forward"


# -- hooks beside torch.compile --------------------------------------------------------------


def test_only_a_hook_of_the_program_makes_torch_warn():
    modules, undo = torch.nn.modules.module, Undo()
    before = modules._has_any_global_hook

    def hook(module, args):
        return None

    handle = modules.register_module_forward_pre_hook(hook)
    dynamo.stay_quiet(undo)
    assert modules._has_any_global_hook()
    hook.__module__ = "bitstep.observe.modules"
    assert not modules._has_any_global_hook()
    undo.all()
    assert modules._has_any_global_hook is before
    handle.remove()


def test_this_torch_has_frame_strategies():
    assert dynamo.problem() is None


def test_a_module_is_changed_when_the_program_imports_it(tmp_path, monkeypatch):
    (tmp_path / "late_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    undo, gaps, told = Undo(), [], []
    finders = list(sys.meta_path)
    when_imported("late_module", lambda module: told.append(module.value), undo, gaps.append)
    assert importlib.util.find_spec("late_module") is not None
    assert told == []
    module = importlib.import_module("late_module")
    assert (told, gaps, sys.meta_path) == ([1], [], finders)
    assert "exec_module" not in vars(module.__loader__)
    del sys.modules["late_module"]


def test_undo_takes_a_waiting_finder_away():
    undo, finders = Undo(), list(sys.meta_path)
    when_imported("never_imported", lambda module: None, undo, print)
    assert sys.meta_path != finders
    undo.all()
    assert sys.meta_path == finders
