"""Pipeline schedules: the pass that learns shapes shifts nothing; microbatch and pass are known."""

import contextlib
import json
import sys
import types

import pipelines_program as program
import pytest
import torch

from bitstep.observe.pipelines import Pipelines
from bitstep.observe.undo import Undo

NAMES = list(program.SCHEDULES)
ZERO_BUBBLE = ["ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble"]
NUMBERS = list(range(program.MICROBATCHES))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return program.run(tmp_path_factory.mktemp("ranks"))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_the_gradients_are_those_of_a_schedule_that_nobody_watches(ranks, name):
    for found in ranks:
        assert found[name]["bits"] == found[name]["bare"]
        assert found[name]["gaps"] == []


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_the_first_step_has_the_forwards_of_the_second(ranks, name):
    for found in ranks:
        assert found[name]["slept"] == program.SCHEDULES[name], "one more forward of each stage"
        first, second = ([row[:3] for row in step[0]] for step in found[name]["steps"])
        assert first == second
        assert len(first) == program.MICROBATCHES * program.SCHEDULES[name]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_every_stage_gets_every_microbatch_once(ranks, name):
    pairs = [(row[0], row[1]) for found in ranks for row in found[name]["steps"][0][0]]
    stages = 2 * program.SCHEDULES[name]
    assert sorted(pairs) == [(stage, number) for stage in range(stages) for number in NUMBERS]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_microbatch_has_the_number_of_its_place_in_the_batch(ranks, name):
    chunks = program.batch(0).chunk(program.MICROBATCHES)
    true = [f"{program.digest_of(chunk).sum:016x}" for chunk in chunks]
    rows = [row for row in ranks[0][name]["steps"][0][0] if row[0] == 0]
    assert [(row[1], row[3]) for row in rows] == list(enumerate(true))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_what_is_sent_has_the_number_of_the_microbatch_that_gets_it(ranks, name):
    sent = {row[2]: row[1] for found in ranks for row in found[name]["steps"][0][1] if row[2]}
    rows = [row for found in ranks for row in found[name]["steps"][0][0] if row[0] > 0]
    arrived = [(row[1], sent[row[3]]) for row in rows if row[3] in sent]
    assert len(arrived) >= program.MICROBATCHES
    assert all(number == told for number, told in arrived)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_each_end_of_a_point_to_point_names_the_same_microbatches(ranks, name):
    for here, there in (ranks, ranks[::-1]):
        sends = sorted(row[1] for row in here[name]["steps"][1][1] if row[0] == "send")
        recvs = sorted(row[1] for row in there[name]["steps"][1][1] if row[0] == "recv")
        assert sends == recvs
        assert set(sends) == set(NUMBERS)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_work_of_the_loss_and_of_backward_has_its_microbatch_and_pass(ranks, name):
    split = {"input-grad", "weight-grad"} if name in ZERO_BUBBLE else {None}
    for found in ranks:
        for _, _, ops in found[name]["steps"]:
            told = {tuple(json.loads(key)): count for key, count in ops.items()}
            assert {pass_ for _, pass_ in told} - {None} == split - {None}
            for pass_ in {pass_ for _, pass_ in told}:
                counts = [told.get((number, pass_)) for number in NUMBERS]
                assert counts == counts[:1] * program.MICROBATCHES, "each as much as the first"


@pytest.mark.long
def test_undo_puts_every_method_back_and_watching_imports_nothing(ranks):
    assert [(found["wrapped"], found["early"]) for found in ranks] == [(0, False)] * 2


# -- in this process -------------------------------------------------------------------------


class Stage:
    """As torch's stage, as far as it is used."""

    def __init__(self, submod, stage_index):
        self.submod, self.stage_index = submod, stage_index

    def forward_one_chunk(self, chunk):
        return self.submod(chunk)

    def backward_one_chunk(self, chunk, loss=None, full_backward=True):
        return self.submod(chunk)

    def get_fwd_send_ops(self, chunk):
        return [types.SimpleNamespace(tensor=self.submod(chunk))]


def watch(monkeypatch, asleep=contextlib.nullcontext, made=lambda module, index: None):
    """Pipelines that watch `Stage`, what they told, and the gaps."""
    module = types.ModuleType("torch.distributed.pipelining.stage")
    module._PipelineStageBase = type("_PipelineStageBase", (Stage,), dict(vars(Stage)))
    module.__spec__ = None
    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining.stage", module)
    told, gaps, undo = [], [], Undo()

    @contextlib.contextmanager
    def chunk(number, pass_):
        told.append((number, pass_))
        yield

    pipelines = Pipelines(asleep, chunk, made, lambda: True)
    pipelines._watch_stages(module, undo, gaps.append)
    return module._PipelineStageBase, pipelines, told, gaps, undo


def test_a_backward_of_inputs_only_is_told_by_its_pass(monkeypatch):
    stage, _, told, *_ = watch(monkeypatch)
    one = stage(lambda chunk: chunk, 0)
    one.forward_one_chunk(2)
    one.backward_one_chunk(2)
    one.backward_one_chunk(3, full_backward=False)
    one.backward_one_chunk(1, None, False)
    assert told == [(2, None), (2, None), (3, "input-grad"), (1, "input-grad")]


def test_stages_are_told_with_their_index(monkeypatch):
    made = []
    stage, *_ = watch(monkeypatch, made=lambda module, index: made.append((module, index)))
    stage("module", 3)
    assert made == [("module", 3)]


def test_a_tensor_that_is_gone_has_no_microbatch(monkeypatch):
    stage, pipelines, *_ = watch(monkeypatch)
    x = torch.ones(2)
    tensors = {5: x}
    stage(tensors.get, 0).get_fwd_send_ops(5)
    assert pipelines.microbatch_of(x) == 5
    assert pipelines.microbatch_of(torch.ones(2)) == -1
    tensors.clear()
    del x
    assert pipelines._sent == {}


def test_what_this_torch_does_not_have_is_a_sentence_and_the_rest_is_watched(monkeypatch):
    *_, gaps, _ = watch(monkeypatch)
    assert gaps[0] == (
        "pipelines are not told apart by microbatch and pass: "
        "this torch has no backward_weight_one_chunk"
    )
    assert len(gaps) == 4


def test_undo_restores_the_stage(monkeypatch):
    stage, *_, undo = watch(monkeypatch)
    assert hasattr(stage.forward_one_chunk, "__wrapped__")
    undo.all()
    assert not hasattr(stage.forward_one_chunk, "__wrapped__")
