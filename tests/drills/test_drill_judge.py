from dataclasses import replace

import pytest
from row_compare import difference_of

from bitstep.diff.difference import Bits, Cause, Kind, Where
from bitstep.faults.flip import Flip
from bitstep.investigate.drill_draw import Call, Program
from bitstep.investigate.drill_judge import Lines, judge
from bitstep.records import Record, Site

OPS = ["aten.mm", "aten.add", "aten.mm", "aten.mul_"]


def rows():
    # Before the first training forward the recorder has calls that the faults do not count.
    sites = [Site(0, 0, "start", "out.0", op="aten.zeros.default")]
    seen = dict.fromkeys(OPS, 0)
    for op in OPS:
        sites += [
            Site(1, 0, "forward", s, op=f"{op}.x", occurrence=seen[op]) for s in ("in.0", "out.0")
        ]
        seen[op] += 1
    sites.append(Site(1, 0, "optimizer", "args.lr", op="AdamW"))
    return [Record(seq, site, 0, "float32") for seq, site in enumerate(sites)]


def program():
    ops = ["profiler.enter", *OPS]
    calls = tuple(Call(n, "forward", "", op, (), frozenset()) for n, op in enumerate(ops))
    return Program({0: {1: calls}}, {})


LINES = Lines(program(), rows())
FLIP = Flip(kind="output", step=1, op="aten.mm", occurrence=1)
STRAY = Flip(kind="stray", step=1, tensor="param:0.weight")
SITE = {"step": 1, "rank": 0, "call": 3}
FIRED = {"status": "fired", "site": SITE}
EFFECT = {"step": 1, "streams": ["parameters"]}


def cause(kind, op="aten.mm.x", occurrence=1, slot="out.0", module="", phase="forward"):
    where = Where(1, 0, phase, "primary", -1, module, op, occurrence, slot, 0, 0)
    seqs = {(*r.site[6:9], r.site.slot): r.seq for r in rows()}
    bits = Bits(0, "float32", (), seqs.get((module, op, occurrence, slot), 99))
    return Cause(kind, where, "a title", (), "", bits, bits, (0,), 0, "")


def judged(flip, receipt, effect, *causes):
    found = judge(
        flip, [receipt] if receipt else [], effect, difference_of("a", "b", causes), LINES
    )
    return found.outcome, found.why


def test_the_calls_of_recorder_and_faults_are_lined_up():
    assert LINES.agree(0)
    assert LINES.recorded(0, 1, 3)[5:] == ("aten.mm.x", 1)
    assert LINES.recorded(0, 1, 0) is None


def test_a_call_that_only_the_faults_counted_has_no_record_and_shifts_nothing():
    calls = program().calls[0][1]
    inside = Call(0, "reduce", "", "aten.split", (), frozenset())
    places = [*calls[:2], inside, *calls[2:]]
    counted = tuple(call._replace(place=at) for at, call in enumerate(places))
    lines = Lines(Program({0: {1: counted}}, {}), rows())
    assert not lines.agree(0)
    assert lines.recorded(0, 1, 2) is None
    assert lines.recorded(0, 1, 4) == LINES.recorded(0, 1, 3)
    assert lines.recorded(0, 1, 1) == LINES.recorded(0, 1, 1)


def test_an_output_is_named_exactly_by_the_call_alone():
    assert judged(FLIP, FIRED, EFFECT, cause(Kind.ORIGIN)) == ("exact", "origin at the call")
    other, why = judged(FLIP, FIRED, EFFECT, cause(Kind.ORIGIN, occurrence=0))
    assert other == "unnamed"
    assert why.endswith("a title; expected step 1 forward - aten.mm.x #1")


def test_a_right_place_of_a_wrong_kind_is_not_named():
    assert judged(FLIP, FIRED, EFFECT, cause(Kind.DATA))[0] == "unnamed"


def test_a_call_that_makes_the_batch_is_named_as_data():
    sites = [(r.site, r.seq) for r in rows()]
    made = [Record(n, s._replace(phase="data"), 0, "float32") for s, n in sites]
    lines = Lines(program(), made)
    data = cause(Kind.DATA, phase="data")
    found = judge(FLIP, [FIRED], EFFECT, difference_of("a", "b", [data]), lines)
    assert (found.outcome, found.why) == ("exact", "data at the call")
    stray = judge(STRAY, [FIRED], EFFECT, difference_of("a", "b", [data]), lines)
    assert stray.outcome == "unnamed"


def test_a_stray_write_is_named_by_its_first_reader_or_by_its_tensor():
    receipt = {**FIRED, "site": {**SITE, "call": 1}, "consumer": {**SITE, "call": 4}}
    reader = cause(Kind.UNSEEN, op="aten.mul_.x", occurrence=0, slot="in.0")
    assert judged(STRAY, receipt, EFFECT, reader) == ("exact", "unseen write at the call")
    tensor = cause(Kind.UNSEEN, "", 1, "param", "Net.0.weight", "optimizer")
    assert judged(STRAY, receipt, EFFECT, tensor) == ("exact", "unseen write of the tensor")
    for wrong in ("Net.10.weight", "Net.0.bias"):
        assert (
            judged(STRAY, receipt, EFFECT, cause(Kind.UNSEEN, "", 1, "param", wrong))[0]
            == "unnamed"
        )


def test_a_call_between_the_fault_and_its_first_reader_is_told_as_such():
    receipt = {**FIRED, "site": {**SITE, "call": 1}, "consumer": {**SITE, "call": 4}}
    outcome, why = judged(STRAY, receipt, EFFECT, cause(Kind.UNSEEN, "aten.add.x", 0, "in.0"))
    assert outcome == "unnamed"
    assert why.endswith("that is after the fault, and before the first call that takes the byte")


@pytest.mark.parametrize("op", ["", "before grad_sync"])
def test_a_record_of_the_state_between_the_fault_and_its_first_reader_names_it(op):
    receipt = {**FIRED, "site": {**SITE, "call": 1}, "consumer": {**SITE, "call": 4}}
    named = cause(Kind.UNSEEN, op, 0, "state.exp_avg", "another.name")
    bits = replace(named.a, seq=5)
    outcome = judged(STRAY, receipt, EFFECT, replace(named, a=bits))
    said = "unseen write between the fault and the call that takes it"
    assert outcome == ("exact", said)
    early = replace(named.a, seq=0)
    assert judged(STRAY, receipt, EFFECT, replace(named, a=early))[0] == "unnamed"


@pytest.mark.parametrize(
    ("receipt", "effect", "why"),
    [
        (None, None, "not reached: no such step"),
        ({"status": "unreached", "reason": "freed"}, None, "not reached: freed"),
        (FIRED, None, "no byte of the state differs: never read, not seen"),
        (
            {**FIRED, "consumer": {"status": "overwritten"}},
            None,
            "no byte of the state differs: overwritten, not seen",
        ),
    ],
)
def test_a_fault_without_an_effect_is_null(receipt, effect, why):
    assert judged(FLIP, receipt, effect) == ("null", why)


def test_an_effect_that_no_record_shows_is_missed():
    assert judged(FLIP, FIRED, EFFECT) == ("missed", "the same")


def test_another_record_of_the_memory_between_the_fault_and_its_reader_names_it():
    receipt = {**FIRED, "site": {**SITE, "call": 1}, "consumer": {**SITE, "call": 4}}
    call = cause(Kind.UNSEEN, "aten.add.x", 0, "in.0")
    record = replace(call, where=replace(call.where, op="", slot="out.0"))
    outcome, why = judged(STRAY, receipt, EFFECT, record)
    assert (outcome, why) == (
        "exact",
        "unseen write between the fault and the call that takes it",
    )
