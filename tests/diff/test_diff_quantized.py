"""What `bitstep diff` says of a quantized tensor: for every class one change in each part."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from fingerprint.quantized_fakes import (
    blockwise,
    flip,
    float8,
    grouped,
    hybrid,
    mxfp8,
    nvfp4,
    torchao_float8,
    torchao_mx,
    torchao_nvfp4,
    torchao_training,
)

from bitstep.diff import Difference, compare_runs
from bitstep.observe.digests import digest_of
from bitstep.observe.snapshot import Row, by_parts, root_of
from bitstep.records import Outcome, Record, Site
from bitstep.report.difference import difference_text
from bitstep.trace import TraceWriter

Make = Callable[..., Any]
Change = Callable[[Make], Any]
SAME = "the same"
DISAGREE = "row and column copies disagree; "
LAYOUT = "another layout of the same scales: swizzled is False in A, True in B"


def flipped(field: str, at: int = 0) -> Change:
    """One bit of one byte of a buffer."""

    def change(make: Make) -> Any:
        tensor = make()
        flip(attrgetter(field)(tensor), at)
        return tensor

    return change


def given(field: str, value: object) -> Change:
    def change(make: Make) -> Any:
        tensor = make()
        setattr(tensor, field, value)
        return tensor

    return change


def made(**how: Any) -> Change:
    return lambda make: make(**how)


TABLE: dict[Make, dict[str, tuple[Change, str]]] = {
    float8: {
        "payload": (flipped("_data"), DISAGREE + "rows: payload differs, scales are the same"),
        "scale": (flipped("_scale_inv"), "same payload, scales differ"),
        "column payload": (flipped("_transpose"), DISAGREE + "columns: payload differs"),
        "column stale": (made(stale=True), "payload.column invalid in B"),
        "column absent": (made(transpose=False), "payload.column absent in B"),
        "codes": (given("_fp8_dtype", torch.float8_e5m2),
                  "another format: codes is kFloat8E4M3 in A, float8_e5m2 in B"),
    },
    mxfp8: {
        "payload": (flipped("_rowwise_data"),
                    DISAGREE + "rows: payload differs, scales are the same"),
        "scale": (flipped("_rowwise_scale_inv"), DISAGREE + "rows: same payload, scales differ"),
        "padding, one byte": (flipped("_rowwise_scale_inv", 3), SAME),
        "padding, all": (made(padding=2), SAME),
        "layout": (made(swizzled=True), LAYOUT),
        "layout, other padding": (made(swizzled=True, padding=2), LAYOUT),
        "column payload": (flipped("_columnwise_data"),
                           DISAGREE + "columns: payload differs, scales are the same"),
        "column scale": (flipped("_columnwise_scale_inv"),
                         DISAGREE + "columns: same payload, scales differ"),
        "column padding": (flipped("_columnwise_scale_inv", 96), SAME),
        "column absent": (made(columns=False), "payload.column, scale.column absent in B"),
        "everything": (made(seed=5),
                       "payload and scales differ; columns: payload and scales differ"),
    },
    nvfp4: {
        "payload": (flipped("_rowwise_data"),
                    DISAGREE + "rows: payload differs, scales and amax are the same"),
        "scale": (flipped("_rowwise_scale_inv"),
                  DISAGREE + "rows: same payload, scales differ, amax is the same"),
        "amax": (flipped("_amax_rowwise"),
                 DISAGREE + "rows: amax differs, payload and scales are the same"),
        "padding, one byte": (flipped("_rowwise_scale_inv", 7), SAME),
        "padding, all": (made(padding=2), SAME),
        "layout": (made(swizzled=True), LAYOUT),
        "column amax": (flipped("_amax_columnwise"),
                        DISAGREE + "columns: amax differs, payload and scales are the same"),
        "column absent": (made(columns=False),
                          "payload.column, scale.column, amax.column absent in B"),
        "4over6": (given("_nvfp4_use_4over6", True),
                   "another format: 4over6 is False in A, True in B"),
    },
    blockwise: {
        "payload": (flipped("_rowwise_data"),
                    DISAGREE + "rows: payload differs, scales are the same"),
        "scale": (flipped("_rowwise_scale_inv"), DISAGREE + "rows: same payload, scales differ"),
        "padding, one byte": (flipped("_rowwise_scale_inv", 4), SAME),
        "padding, all": (made(padding=2), SAME),
        "layout": (made(squares=False),
                   "same payload, scales differ; columns: same payload, scales differ; "
                   "another format: block is 128x128 in A, 1x128 in B"),
        "column scale": (flipped("_columnwise_scale_inv"),
                         DISAGREE + "columns: same payload, scales differ"),
    },
    hybrid: {
        "payload": (flipped("_rowwise_storage._rowwise_data"),
                    DISAGREE + "rows: payload differs, scales are the same"),
        "scale": (flipped("_rowwise_storage._rowwise_scale_inv"),
                  DISAGREE + "rows: same payload, scales differ"),
        "column amax": (flipped("_columnwise_storage._amax_columnwise"),
                        DISAGREE + "columns: amax differs, payload and scales are the same"),
        "padding, all": (made(padding=2), SAME),
        "layout": (made(swizzled=True), LAYOUT),
        "column absent": (made(columns=False), "payload.column, scale.column absent in B; another "
                          "format: column is NVFP4TensorStorage in A, None in B"),
    },
    grouped: {
        "payload": (flipped("rowwise_data"),
                    DISAGREE + "rows: payload differs, scales and offsets are the same"),
        "scale": (flipped("scale_inv", 512 + 4),
                  DISAGREE + "rows: same payload, scales differ"),
        "tail": (flipped("rowwise_data", 160 * 96), SAME),
        "padding, one byte": (flipped("scale_inv", 3), SAME),
        "padding, all": (made(padding=2), SAME),
        "layout": (made(swizzled=True), LAYOUT),
        "column scale": (flipped("columnwise_scale_inv"),
                         DISAGREE + "columns: same payload, scales differ"),
        "offsets": (flipped("tensor_offsets", 8),
                    "offsets differ, payload and scales are the same"),
    },
    torchao_mx: {
        "payload": (flipped("qdata"), "payload differs, scales are the same"),
        "scale": (flipped("scale"), "same payload, scales differ"),
        "layout": (made(swizzled=True), LAYOUT),
        "block": (given("block_size", 16), "another format: block_size is 32 in A, 16 in B"),
    },
    torchao_nvfp4: {
        "payload": (flipped("qdata"), "payload differs, scales and amax are the same"),
        "scale": (flipped("scale"), "same payload, scales differ, amax is the same"),
        "amax": (flipped("per_tensor_scale"), "amax differs, payload and scales are the same"),
        "amax absent": (given("per_tensor_scale", None), "amax absent in B"),
        "layout": (made(swizzled=True), LAYOUT),
    },
    torchao_float8: {
        "payload": (flipped("qdata"), "payload differs, scales are the same"),
        "scale": (flipped("scale"), "same payload, scales differ"),
        "block": (given("block_size", [160, 96]),
                  "another format: block_size is 1,96 in A, 160,96 in B"),
    },
    torchao_training: {
        "payload": (flipped("_data"), "payload differs, scales are the same"),
        "scale": (flipped("_scale"), "same payload, scales differ"),
        "axis": (given("_axiswise_dim", 0), "another format: axiswise_dim is None in A, 0 in B"),
    },
}  # fmt: skip
ROWS = [(make, name) for make, changes in TABLE.items() for name in changes]


def record(run: Path, held: Any) -> None:
    """The state before the first step, as a recorder writes it, of a model that holds a tensor as
    an attribute."""
    whole = Row("Net.held", "attr", digest_of(held), None)
    rows = list(by_parts(whole, held))
    records = [
        Record(at, Site(0, 0, "start", row.slot, module=row.name, part=row.part), *row.digest[:3],
               flags=row.digest.flags)
        for at, row in enumerate(rows)
    ]  # fmt: skip
    writer = TraceWriter(run / "attempt-000", 0)
    writer.write(records)
    writer.end_step(0, root_of(rows))
    writer.close()


def compared(folder: Path, make: Make, change: Change) -> Difference:
    record(folder / "a", make())
    record(folder / "b", change(make))
    return compare_runs(folder / "a", folder / "b")


def said(found: Difference) -> str:
    """The words about parts at the end of the title."""
    if found.outcome is Outcome.SAME:
        return SAME
    [cause] = found.causes
    before = "the state before the first step is another one: Net.held: "
    assert cause.title.startswith(before), cause.title
    return cause.title.removeprefix(before)


@pytest.mark.parametrize(("make", "name"), ROWS, ids=[f"{m.__name__}-{n}" for m, n in ROWS])
def test_one_change_is_named_by_its_part(make: Make, name: str, tmp_path: Path) -> None:
    change, expected = TABLE[make][name]
    assert said(compared(tmp_path, make, change)) == expected


@pytest.mark.parametrize("make", TABLE)
def test_equal_tensors_are_the_same(make: Make, tmp_path: Path) -> None:
    assert said(compared(tmp_path, make, made())) == SAME


def test_the_first_screen_names_the_part(tmp_path: Path) -> None:
    change = flipped("scale")
    text = difference_text(compared(tmp_path, torchao_mx, change)).splitlines()
    assert text[1].endswith("Net.held: same payload, scales differ")
    assert text[4].endswith("module Net.held, slot attr, part scale")


def test_a_part_is_not_said_to_have_been_equal_where_another_part_was(tmp_path: Path) -> None:
    [cause] = compared(tmp_path, mxfp8, flipped("_rowwise_scale_inv")).causes
    assert cause.because[0] == (
        "First on the way: before the first step: attr of Net.held is the first record that "
        "differs."
    )


def call(run: Path, scale: int, bias: bool, more: int) -> None:
    """A step with calls of an op on a quantized input, the first of them with or without a bias."""
    site = Site(1, 0, "forward", "in.0", module="Net", op="aten.mm[MXTensor]")
    slots = [("in.0", "payload", 5), ("in.0", "scale", scale), *([("in.1", "bits", 7)] * bias)]
    rows = [(0, "level", "bits", "", 3), *((0, s, part, site.op, d) for s, part, d in slots)]
    rows += [(at, "in.0", "payload", "aten.add", 10 + at) for at in range(more)]
    records = [
        Record(
            at, site._replace(occurrence=occurrence, slot=slot, part=part, op=op), digest, "uint8"
        )
        for at, (occurrence, slot, part, op, digest) in enumerate(rows)
    ]
    writer = TraceWriter(run / "attempt-000", 0)
    writer.write(records)
    writer.end_step(1, scale)
    writer.close()


def test_parts_of_an_input_are_paired_by_part_where_calls_have_other_arguments(
    tmp_path: Path,
) -> None:
    call(tmp_path / "a", scale=1, bias=True, more=1)
    call(tmp_path / "b", scale=2, bias=False, more=2)
    [cause] = compare_runs(tmp_path / "a", tmp_path / "b").causes
    assert cause.where.part == "scale"
    assert (cause.a and cause.a.digest, cause.b and cause.b.digest) == (1, 2)
    assert cause.title.endswith("same payload, scales differ")
