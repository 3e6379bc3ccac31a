"""The catalog: every row is complete and the only one of its kind, names are found as traces write
them, and the rows of the CPU are those that the shipped survey shows, no more and no fewer."""

import re
import subprocess
import sys
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from bitstep.contract.catalog import CATALOG, FLAG, MACHINE, ONE_KERNEL, THREADS, Row, look_up
from bitstep.contract.catalog_cpu import AXES, CPU, is_steady
from bitstep.contract.catalog_cuda import CUDA
from bitstep.contract.catalog_libraries import LIBRARIES
from bitstep.contract.catalog_row import Condition
from bitstep.contract.survey_file import shipped
from bitstep.report.survey import HEAD, rows, summary

HINTS = get_type_hints(Row)


@pytest.fixture(scope="module")
def cases():
    return shipped().cases


def test_every_row_is_complete():
    for row in CATALOG:
        for field in fields(Row):
            words = get_args(HINTS[field.name])
            if words and field.name not in ("only", "cases"):
                assert getattr(row, field.name) in words, row
        assert set(row.only) <= set(get_args(Condition)), row
        assert row.op.count(".") == 1, row
        assert row.evidence, row
        assert bool(row.mechanism) == (row.varies != "never seen to"), row
        if row.varies != "never seen to":
            assert row.raises or row.setting or row.alternative or row.when, row
        if row.mark == "measured":
            assert row.cases or Path(row.evidence).is_file(), row


def test_no_row_stands_twice():
    keys = [(row.op, row.device, row.varies, row.when) for row in CATALOG]
    assert len(keys) == len(set(keys))


def test_no_operation_was_both_seen_to_vary_and_never_seen_to():
    for row in CATALOG:
        if row.varies == "never seen to":
            assert look_up(row.op, row.device) == (row,)


def test_only_what_the_survey_shows_is_marked_as_measured():
    assert {row.mark for row in (*CUDA, *LIBRARIES)} == {"source only", "public report"}
    assert {row.device for row in CPU} == {"cpu"}


def test_every_row_of_the_cpu_is_what_the_shipped_survey_shows(cases):
    for row in CPU:
        named = [cases[name] for name in row.cases]
        if row.varies == "never seen to":
            assert all(row.raises == bool(case.raises) for case in named), row
            assert not any(case.varies(axis) for case in named for axis in AXES.values()), row
            continue
        assert all(case.varies(AXES[row.varies]) for case in named), row
        if row.setting == FLAG:
            assert not any(case.varies("on") or case.raises for case in named), row
        if row.varies == "run to run" and row.cases:
            assert all(row.raises == bool(case.raises) for case in named), row
            assert all(case.off[0][0] == 1 for case in named), "not at one thread"
            assert "more than one thread" in row.only


def test_whatever_the_shipped_survey_shows_to_vary_has_a_row(cases):
    cited = {(row.varies, name) for row in CPU for name in row.cases}
    for name, case in cases.items():
        for varies, axis in AXES.items():
            if case.varies(axis):
                assert (varies, name) in cited


def test_every_operation_that_the_survey_ran_steadily_is_in_the_catalog(cases):
    for case in cases.values():
        for op in case.ops if is_steady(case) else ():
            assert look_up(op, "cpu"), op


def test_settings_are_those_that_others_look_for():
    assert {row.setting for row in CPU} == {FLAG, THREADS, ONE_KERNEL, MACHINE, ""}


@pytest.mark.parametrize(
    "op",
    ["aten.index_put_", "aten.index_put_.default", "aten.index_put", "aten.index_put_[MXTensor]",
     "aten::index_put_"],
)  # fmt: skip
def test_an_operation_is_found_as_a_trace_writes_it(op):
    worst = look_up(op, "cpu")[0]
    assert (worst.varies, worst.mechanism, worst.setting) == ("run to run", "atomics", FLAG)


@pytest.mark.parametrize(
    ("op", "device", "varies"),
    [
        ("aten.embedding_dense_backward", "cpu", "instruction set"),
        ("aten.topk", "cpu", "never seen to"),
        ("aten.embedding_dense_backward", "cuda", "run to run"),
        ("aten.sum.dim_IntList", "cpu", "thread count"),
        ("aten.cumsum", "cuda:1", "run to run"),
        ("aten.upsample_bilinear2d_backward.default", "cuda", "run to run"),
        ("aten.reflection_pad1d_backward", "cuda", "run to run"),
        ("c10d.allreduce_", "cuda", "run to run"),
        ("_c10d_functional.all_reduce", "cuda", "run to run"),
        ("flash_attn._flash_attn_backward", "cuda", "run to run"),
        ("flash_attn._flash_attn_varlen_backward.default", "cuda", "run to run"),
        ("DaoAILab._causal_conv1d_bwd_cpp", "cuda", "run to run"),
    ],
)
def test_operations_of_each_kind_are_found(op, device, varies):
    assert look_up(op, device)[0].varies == varies


@pytest.mark.parametrize(
    ("op", "device"),
    [("mine.kernel", "cpu"), ("mine.kernel", "cuda"), ("aten.no_such_operation", "cpu"),
     ("aten.index_put_", "xpu"), ("", "cpu"), ("aten.[", "cpu"), ("flash_attn._flash_attn_backward",
     "cpu")],
)  # fmt: skip
def test_what_nobody_has_tried_has_no_row(op, device):
    assert look_up(op, device) == ()


def test_the_worst_comes_first():
    found = [row.varies for row in look_up("aten.index_put_", "cpu")]
    assert found[0] == "run to run"
    order = list(get_args(HINTS["varies"]))
    for op in {row.op for row in CPU}:
        places = [order.index(row.varies) for row in look_up(op, "cpu")]
        assert places == sorted(places)


def test_torch_has_every_operation_that_a_row_names():
    import torch

    names = [
        name.replace("::", ".").split(".")[1] for name in torch._C._dispatch_get_all_op_names()
    ]
    for row in CATALOG:
        space, _, packet = row.op.partition(".")
        if space == "aten":
            fitting = (name for name in names if fnmatchcase(name, packet))
            assert next(fitting, ""), row.op


def test_every_operation_of_torchs_own_list_has_a_row():
    """Words of the list that a row stands for: a longer list in another torch is noticed."""
    import torch

    told = torch.use_deterministic_algorithms.__doc__ or ""
    items = [line for line in told.splitlines() if line.strip().startswith("* :")]
    assert len(items) == 48, "the list of torch has changed: look at catalog_cuda.py again"


def test_the_catalog_needs_no_torch():
    code = "import sys, bitstep.contract.catalog; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_the_document_shows_what_the_catalog_holds():
    text = Path("docs/catalog.md").read_text()
    shown = text.partition("<!-- survey -->\n")[2].partition("<!-- /survey -->")[0]
    lines = [f"| {' | '.join(row)} |" for row in (HEAD, ("---",) * 3, *rows(shipped()))]
    assert shown == "\n".join(["", *lines, "", f"{summary(shipped())}.", "", ""])
    told = re.search(r"each time: (\d+) operations", text)
    assert told
    never = sum(row.varies == "never seen to" and not row.raises for row in CPU)
    assert int(told[1]) == never // 10 * 10
