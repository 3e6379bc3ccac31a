"""What the catalog makes of an operation under the circumstances of a program."""

import pytest

from bitstep.contract.catalog import FLAG, THREADS, Row
from bitstep.investigate.doctor import operations
from bitstep.investigate.doctor.calls import Call, Ran, Tensor
from bitstep.investigate.doctor.conditions import Circumstances, applies, duplicates, holds
from bitstep.investigate.doctor.operations import (
    Setup,
    classed,
    held_settings,
    operation_findings,
)
from bitstep.observe.schemas import digest_of_text

ONE, TWO = Circumstances("cpu", 1, False), Circumstances("cpu", 2, False)
ACCUMULATES = digest_of_text(repr([("accumulate", True)]))
REPLACES = digest_of_text(repr([("accumulate", False)]))


def put(indices, places=50, args=ACCUMULATES):
    """A call of index_put_ with so many indices into so many places."""
    tensors = (
        Tensor("in.0", "float32", (places, 8)),
        Tensor("in.1[0]", "int64", (indices,)),
        Tensor("in.2", "float32", (indices, 8)),
        Tensor("mutated.0", "float32", (places, 8)),
    )
    return Call(tensors, args)


def row(varies="run to run", only=(), setting=FLAG, **other):
    return Row(op="aten.x", device="cpu", varies=varies, only=only, mechanism="race",
               setting=setting, evidence="here", mark="measured", **other)  # fmt: skip


def ran(op, *calls):
    found = Ran(op, count=len(calls))
    found.kinds.update(calls)
    found.places["Net"] = len(calls)
    return found


@pytest.fixture
def catalog(monkeypatch):
    """A catalog of a few rows."""
    rows = {}
    monkeypatch.setattr(operations, "look_up", lambda op, device: rows.get(op, ()))
    return rows


@pytest.mark.parametrize(
    ("call", "expected"),
    [(put(51), True), (put(50), None), (put(2), None), (put(1), False)],
)
def test_more_indices_than_places_are_duplicates_and_one_is_none(call, expected):
    assert duplicates(call) is expected


def test_an_embedding_of_more_tokens_than_words_has_duplicates():
    given = (Tensor("in.0", "float32", (20, 8)), Tensor("in.1", "int64", (20,)))
    assert duplicates(Call(given, None)) is None
    given = (Tensor("in.0", "float32", (10, 8)), Tensor("in.1", "int64", (20,)))
    assert duplicates(Call(given, None)) is True


def test_integers_that_index_nothing_are_no_indices():
    assert duplicates(Call((Tensor("in.0", "int64", (9,)),), None)) is None


@pytest.mark.parametrize(
    ("only", "call", "here", "expected"),
    [
        ((), put(1), ONE, True),
        (("more than one thread",), put(9), ONE, False),
        (("more than one thread",), put(9), TWO, True),
        (("accumulate",), put(9), ONE, True),
        (("accumulate",), put(9, args=REPLACES), ONE, False),
        (("accumulate",), put(9, args=None), ONE, False),
        (("accumulate",), put(9, args=12345), ONE, None),
        (("duplicate indices", "more than one thread"), put(9), ONE, False),
        (("duplicate indices", "more than one thread"), put(9), TWO, None),
        (("duplicate indices", "more than one thread"), put(99), TWO, True),
        (("floating point",), put(9), ONE, True),
        (("not aligned",), put(9), ONE, False),
        (("not aligned",), put(9), Circumstances("cpu", 1, True), None),
        (("a few rows",), Call((Tensor("in.0", "float32", (2, 8)),), None), ONE, True),
        (("a few rows",), Call((Tensor("in.0", "float32", (4, 8)),), None), ONE, False),
        (("not whole vectors",), Call((Tensor("in.0", "float32", (16,)),), None), ONE, False),
        (("not whole vectors",), Call((Tensor("in.0", "float32", (16,)),), None), TWO, True),
    ],
)
def test_a_condition_holds_or_not_or_cannot_be_told(only, call, here, expected):
    assert holds(row(only=only), call, here) is expected


def test_one_call_that_is_certain_is_enough():
    row_ = row(only=("duplicate indices",))
    assert applies(row_, [put(1)], TWO) is False
    assert applies(row_, [put(1), put(2)], TWO) is None
    assert applies(row_, [put(1), put(2), put(99)], TWO) is True


@pytest.mark.parametrize(
    ("rows", "held", "expected"),
    [
        ([row()], {}, "varies"),
        ([row()], {FLAG: "it is on"}, "under a setting"),
        ([row(setting="")], {FLAG: "it is on"}, "varies"),
        ([row(only=("duplicate indices",))], {}, "may vary"),
        ([row(only=("more than one thread",))], {}, "deterministic"),
        ([row("thread count", setting=THREADS)], {}, "may vary"),
        ([row("thread count", setting=THREADS)], {THREADS: "1"}, "under a setting"),
        ([row("thread count", ("more than one thread",), THREADS)], {}, "may vary"),
        (
            [row("thread count", ("more than one thread",), THREADS)],
            {THREADS: "1"},
            "under a setting",
        ),
        ([row("instruction set", setting="")], {}, "under a setting"),
        ([row("shape", setting="")], {}, "deterministic"),
        ([row("never seen to", setting="")], {}, "deterministic"),
        ([row("never seen to", setting=""), row("thread count", setting=THREADS)], {}, "may vary"),
    ],
)
def test_the_class_of_an_operation_is_the_worst_that_a_row_makes_of_it(
    catalog, rows, held, expected
):
    catalog["aten.x"] = tuple(rows)
    assert classed(ran("aten.x", put(2)), Setup(ONE, held)).class_ == expected


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("aten.view", "deterministic"),
        ("aten.add.Tensor", "deterministic"),
        ("c10d.broadcast_", "deterministic"),
        ("c10d.allreduce_", "unknown"),
        ("aten.all", "deterministic"),
        ("aten.random_", "deterministic"),
        ("aten.mm", "unknown"),
        ("mine.kernel", "unknown"),
        ("compiled.train.py:Net.forward[0]", "unknown"),
    ],
)
def test_without_a_row_only_moves_and_pointwise_operations_are_known(catalog, op, expected):
    assert classed(ran(op, put(2)), Setup(ONE, {})).class_ == expected


def test_custom_operations_compiled_regions_and_those_that_nobody_tried_are_told_apart(catalog):
    found = [classed(ran(op, put(2)), Setup(ONE, {}))
             for op in ("mine.kernel", "compiled.a.py:f[0]", "aten.mm", "aten.bmm")]  # fmt: skip
    said = [(one.severity, one.what) for one in operation_findings(found, Setup(ONE, {}))]
    assert said == [
        ("unknown", "mine.kernel is a custom operation"),
        ("unknown", "1 compiled region"),
        ("unknown", "2 operations are not in the catalog"),
    ]


def test_operations_that_vary_alike_are_one_finding_and_races_have_one_each(catalog):
    threads = row("thread count", setting=THREADS)
    catalog.update({"aten.a": (threads,), "aten.b": (threads,), "aten.c": (row(),),
                    "aten.d": (row(),)})  # fmt: skip
    setup = Setup(TWO, {})
    found = [classed(ran(f"aten.{name}", put(99)), setup) for name in "abcd"]
    said = [(one.severity, one.what, one.fix) for one in operation_findings(found, setup)]
    assert said == [
        ("varies", "aten.c has other bits each time", f"set {FLAG}"),
        ("varies", "aten.d has other bits each time", f"set {FLAG}"),
        ("may vary", "2 operations depend on the number of threads; nothing sets it: 2 here",
         f"set {THREADS}"),
    ]  # fmt: skip


def noted(deterministic=(True, True), warn_only=False, chose=True, **variables):
    flags = [{"deterministic": on, "warn only": warn_only, "threads": 1} for on in deterministic]
    moments = dict(zip(("first step", "end"), flags, strict=True))
    return {"flags": moments, "chose threads": chose, "variables": variables}


@pytest.mark.parametrize(
    ("notes", "flag", "threads"),
    [
        ([noted()], True, True),
        ([noted(), noted(deterministic=(False, True))], False, True),
        ([noted(deterministic=(True, False))], False, True),
        ([noted(warn_only=True)], False, True),
        ([noted(chose=False)], True, False),
        ([noted(chose=False, OMP_NUM_THREADS="2")], True, True),
        ([noted(), noted(chose=False)], True, False),
        ([], False, False),
    ],
)
def test_a_setting_is_held_if_every_process_held_it_to_the_end(notes, flag, threads):
    held = held_settings(notes)
    assert (FLAG in held, THREADS in held) == (flag, threads)
