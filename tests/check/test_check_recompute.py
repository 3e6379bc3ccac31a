"""Recomputation against its forward."""

from __future__ import annotations

import pytest
from check_fakes import Step, bits, write

from bitstep.check import Check, Kind
from bitstep.records import Flag, Outcome


def check(run, of, steps=3):
    return Check(write(run, [0], range(steps), of)).result()


def layer(found, module, step, pass_="primary", draws=0, takes=None, gives=None, occurrence=0,
          stop=False):  # fmt: skip
    """The rows of one layer with dropout, as a forward or as its recomputation."""
    at = {"pass_": pass_, "microbatch": 0, "module": module, "occurrence": occurrence}
    phase = "forward" if pass_ == "primary" else "backward"
    takes = bits("in", module, step) if takes is None else takes
    gives = bits("out", module, step, takes) if gives is None else gives
    found.add(phase, "in.0", digest=takes, **at)
    found.add(phase, "args", digest=5, op="aten.mm", dtype="text", shape=(), **at)
    found.add(phase, "in.0", digest=takes, op="aten.mm", **at)
    found.add(phase, "out.0", digest=gives, op="aten.mm", **at)
    drawn = {"op": "aten.bernoulli_", **at}
    found.add(phase, "rng", digest=bits("rng", module, step, draws), **drawn)
    found.add(phase, "mutated.0", digest=bits("mask", module, step, draws), **drawn)
    if not stop:
        found.add(phase, "out.0", digest=bits(gives, draws), **at)
    return found


def program(change, layers=("Net.a", "Net.b")):
    """Forward through the layers and recompute them, the last first; `change` by (step, layer)."""

    def of(rank, step):
        found = Step(rank, step).begin("op", world=1)
        if step:
            for module in layers:
                layer(found, module, step)
            for module in reversed(layers):
                layer(found, module, step, "recompute", **change.get((step, module), {}))
        return found

    return of


def test_faithful_recomputation_agrees(tmp_path):
    checked = check(tmp_path, program({}))
    assert checked.outcome == Outcome.SAME
    assert checked.compared.recomputed == 2 * 2 * 7


def test_recomputation_that_draws_again(tmp_path):
    change = {(2, "Net.a"): {"draws": 1}}
    checked = check(tmp_path, program(change))
    (found,) = checked.findings
    assert checked.outcome == Outcome.DIFFERENT
    assert (found.kind, found.step, found.ranks, found.told) == (Kind.RECOMPUTE, 2, (0,), True)
    at = found.place
    assert (at.module, at.op, at.slot) == ("Net.a", "aten.bernoulli_", "rng")
    assert found.title == (
        "recomputation draws new random numbers: aten.bernoulli_ in Net.a, on rank 0 since step 2"
    )


def test_recomputation_that_begins_with_another_input(tmp_path):
    change = {(1, "Net.b"): {"takes": 7}}
    (found,) = check(tmp_path, program(change)).findings
    assert found.title == ("recomputation begins with another input: Net.b, on rank 0 since step 1")


def test_recomputation_that_computes_something_else(tmp_path):
    change = {(1, "Net.b"): {"gives": 7}}
    (found,) = check(tmp_path, program(change)).findings
    assert found.title == (
        "recomputation gives another result: aten.mm in Net.b, on rank 0 since step 1"
    )


def test_the_first_in_the_order_of_recomputation_is_named(tmp_path):
    change = {(1, module): {"draws": 1} for module in ("Net.a", "Net.b")}
    (found,) = check(tmp_path, program(change)).findings
    assert found.place.module == "Net.b"


def test_recomputation_that_stops_early_agrees(tmp_path):
    change = {(1, "Net.b"): {"stop": True}}
    assert check(tmp_path, program(change)).outcome == Outcome.SAME


def test_a_layer_that_is_used_twice_may_be_recomputed_in_the_other_order(tmp_path):
    def of(rank, step):
        found = Step(rank, step).begin("op", world=1)
        takes = [bits("first", step), bits("second", step)]
        if step:
            for at, mine in enumerate(takes):
                layer(found, "Net.a", step, takes=mine, draws=at, occurrence=at)
            for at, mine in enumerate(reversed(takes)):
                layer(found, "Net.a", step, "recompute", 1 - at, takes=mine, occurrence=at)
            layer(found, "Net.b", step)
            layer(found, "Net.b", step, "recompute")
        return found

    checked = check(tmp_path, of)
    assert checked.findings == ()
    assert checked.outcome == Outcome.SAME


def dropout(found, use, occurrence, pass_):
    """Dropout as PyTorch does it; recomputation stops when the mask is there."""
    at = {"module": "Net.drop", "occurrence": occurrence, "microbatch": 0, "pass_": pass_}
    phase = "forward" if pass_ == "primary" else "backward"
    x, mask, scaled = (bits(what, use, found.step) for what in ("x", "mask", "scaled"))
    found.add(phase, "in.0", digest=x, **at)
    found.add(phase, "out.0", digest=0, op="aten.empty_like", flags=Flag.SKIPPED, **at)
    found.add(phase, "rng", digest=bits("rng", use), op="aten.bernoulli_", **at)
    found.add(phase, "mutated.0", digest=mask, op="aten.bernoulli_", **at)
    found.add(phase, "args", digest=5, op="aten.div_", **at)
    found.add(phase, "in.0", digest=mask, op="aten.div_", **at)
    found.add(phase, "mutated.0", digest=scaled, op="aten.div_", **at)
    if pass_ == "primary":
        found.add(phase, "in.0", digest=x, op="aten.mul", **at)
        found.add(phase, "in.1", digest=scaled, op="aten.mul", **at)
        found.add(phase, "out.0", digest=bits(x, scaled), op="aten.mul", **at)
        found.add(phase, "out.0", digest=bits(x, scaled), **at)


def test_a_dropout_that_is_used_twice_is_recomputed_in_the_other_order(tmp_path):
    def of(rank, step):
        found = Step(rank, step).begin("op", world=1)
        for use in (0, 1) if step else ():
            dropout(found, use, use, "primary")
        for use in (1, 0) if step else ():
            dropout(found, use, 1 - use, "recompute")
        return found

    assert check(tmp_path, of).findings == ()


@pytest.mark.parametrize("steps", [2, 3, 9])
def test_every_step_is_counted_and_the_first_is_told(tmp_path, steps):
    change = {(step, "Net.a"): {"draws": 1} for step in range(1, steps)}
    checked = check(tmp_path, program(change), steps)
    assert [found.step for found in checked.findings] == [1]
    again = f"recompute: {steps - 2} more after the first of each"
    assert (again in checked.notes) == (steps > 2)
