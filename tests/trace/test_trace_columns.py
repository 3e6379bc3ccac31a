"""Rows in columns give the bytes that records give, for every field, over files and steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_cases import NAME, add, full_record, op_records, step_records

from bitstep.errors import TraceError
from bitstep.records import Box, FlatRange, Record, Site
from bitstep.trace import Columns, TraceWriter, read_trace


def assert_equal_bytes(folder: Path, steps: list[list[Record]], per_file: int = 1000) -> None:
    """Write `steps` both ways; the files are the same, and what is read is what was given."""
    columns = Columns()
    given_back: list[Record] = []
    with (
        TraceWriter(folder / "records", 0, per_file) as records,
        TraceWriter(folder / "columns", 0, per_file) as fast,
    ):
        for step, rows in enumerate(steps):
            placed = [
                row._replace(seq=add(columns, row), site=row.site._replace(step=step))
                for row in rows
            ]
            assert len(columns) == len(rows)
            records.write(placed)
            records.end_step(step, step)
            fast.end_step_columns(step, step, columns)
            assert len(columns) == 0
            given_back += placed
    names = sorted(path.name for path in (folder / "records").iterdir())
    assert names == sorted(path.name for path in (folder / "columns").iterdir())
    for name in names:
        assert (folder / "columns" / name).read_bytes() == (folder / "records" / name).read_bytes()
    assert list(read_trace(folder / "columns").records()) == given_back


def test_columns_write_the_bytes_of_records_over_steps_and_files(tmp_path: Path) -> None:
    steps = [step_records(step % 3, 0) * 2 for step in range(7)]
    assert_equal_bytes(tmp_path, [*steps, [], op_records(1, 0), step_records(9, 0)], per_file=3)


SHAPES = st.sampled_from([(), (0,), (3, 4), (2, 0, 5), (2**63 - 1,)])
NUMBERS = st.sampled_from([-1, 0, 7, 2**31 - 1])
STRINGS = st.sampled_from(["", "a", "é\n", "in.0[Net.0.weight:grad]", "x" * 99])


@st.composite
def rows(draw: st.DrawFn) -> Record:
    shape = draw(SHAPES)
    box = Box(shape, (0,) * len(shape), shape)
    place = draw(st.sampled_from([None, None, box, FlatRange(shape, 2, 3)]))
    words = [draw(STRINGS) for _ in range(7)]
    site = Site(0, draw(NUMBERS), words[0], words[1], words[2], draw(NUMBERS), words[3], words[4],
                draw(NUMBERS), words[5])  # fmt: skip
    digest = draw(st.integers(0, 2**64 - 1))
    flags = draw(st.integers(0, 2**32 - 1))
    return Record(0, site, digest, words[6], shape, place, draw(NUMBERS), draw(NUMBERS), flags)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(rows(), max_size=6), min_size=1, max_size=4))
def test_any_rows_give_equal_bytes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[Record]]
) -> None:
    assert_equal_bytes(tmp_path_factory.mktemp("columns"), steps, per_file=2)


def test_seq_and_heads_go_on_over_steps_and_digests_may_come_late(tmp_path: Path) -> None:
    columns = Columns()
    digests = columns.digests
    with TraceWriter(tmp_path, 0) as trace:
        for step in (1, 2):
            head = columns.head(0, "forward", "primary", 0, "Net", "aten::relu")
            assert head == 0
            assert columns.head(0, "forward", "primary", 1, "Net", "aten::relu") == 1
            seqs = [columns.add(head, 0, f"out.{i}", 0, "int8", ()) for i in range(3)]
            assert seqs == [3 * step - 3, 3 * step - 2, 3 * step - 1]
            digests[1] = 2**64 - step
            trace.end_step_columns(step, 0, columns)
    assert [row.digest for row in read_trace(tmp_path).records()] == [
        0, 2**64 - 1, 0, 0, 2**64 - 2, 0,
    ]  # fmt: skip


def test_rows_of_a_step_that_is_not_recorded_are_dropped_and_their_seq_is_not_given_again() -> None:
    columns = Columns()
    head = columns.head(0, "forward", "primary", 0, "", "")
    assert columns.add(head, 0, "out.0", 1, "int8", ()) == 0
    columns.clear()
    assert (len(columns), columns.digests) == (0, [])
    assert columns.add(head, 0, "out.0", 1, "int8", ()) == 1


def test_the_rank_may_be_learned_late(tmp_path: Path) -> None:
    columns = Columns()
    head = columns.head(0, "start", "primary", -1, "", "")
    columns.add(head, 0, "level", 0, "int64", ())
    columns.set_rank(5)
    assert columns.head(5, "start", "primary", -1, "", "") == head
    assert (columns.next_seq, columns.add(head, 0, "root", 0, "uint64", ())) == (1, 1)
    with TraceWriter(tmp_path, 5) as trace:
        trace.end_step_columns(0, 0, columns)
    assert [row.site.rank for row in read_trace(tmp_path).records()] == [5, 5]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"digest": None}, "column digest holds 1 nulls"),
        ({"digest": -1}, "does not fit the columns"),
        ({"digest": 2**64}, "does not fit the columns"),
        ({"dtype": None}, "does not fit the columns|column dtype holds 1 nulls"),
        ({"dtype": "\ud800"}, "does not fit the columns"),
        ({"shape": None, "place": None}, "column shape holds 1 nulls"),
        ({"shape": (-1,), "place": None}, "negative size"),
        ({"shape": [6, 4]}, "does not fit the columns"),
        ({"shape": (6, 4, 1)}, r"a part of a tensor of shape \(6, 4\)"),
        ({"place": Box((6, 4), (4, 0), (3, 4))}, "does not lie"),
        ({"flags": 2**32}, "does not fit the columns"),
        ({"version": 2**63}, "does not fit the columns"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_when_it_is_written(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    columns = Columns()
    trace = TraceWriter(tmp_path, 0)
    add(columns, full_record(0, 1))
    trace.end_step_columns(1, 1, columns)
    add(columns, full_record(0, 2)._replace(**change))
    with pytest.raises(TraceError, match=words) as caught:
        trace.end_step_columns(2, 2, columns)
    assert NAME.stream in str(caught.value)
    assert len(columns) == 1
    assert list(read_trace(tmp_path).steps) == [1]


@pytest.mark.parametrize("field", ["rank", "microbatch", "occurrence"])
def test_a_site_that_does_not_fit_is_refused(tmp_path: Path, field: str) -> None:
    columns = Columns()
    record = full_record(0, 1)
    add(columns, record._replace(site=record.site._replace(**{field: 2**31})))
    with pytest.raises(TraceError, match="does not fit the columns"):
        TraceWriter(tmp_path, 0).end_step_columns(1, 1, columns)


def test_records_and_columns_do_not_share_a_step(tmp_path: Path) -> None:
    columns = Columns()
    trace = TraceWriter(tmp_path, 0)
    trace.write(step_records(1, 0))
    with pytest.raises(TraceError, match="3 records and a step of columns"):
        trace.end_step_columns(1, 1, columns)
    trace.end_step(1, 1)
    add(columns, full_record(0, 2))
    with pytest.raises(TraceError, match="seq 0 comes after seq 3"):
        trace.end_step_columns(2, 2, columns)


def test_a_step_like_the_one_before_is_not_encoded_and_one_that_differs_is(tmp_path: Path) -> None:
    same = step_records(1, 0)
    other = [*same[:-1], same[-1]._replace(dtype="other", place=None, shape=(7,))]
    fewer, grown = same[:-1], [*same, *op_records(1, 0)]
    assert_equal_bytes(tmp_path, [same, same, other, other, same, fewer, same, grown, same, same])


def test_rows_that_are_laid_out_at_once_are_those_that_are_added(tmp_path: Path) -> None:
    added, extended = Columns(), Columns()
    cells = [added.head(0, "clip", "primary", 1, "a", "op"), 2, "s", "float32", (3,), None, -1, -1,
             0, "bits"]  # fmt: skip
    extended.head(0, "clip", "primary", 1, "a", "op")
    head, occurrence, slot, dtype, shape, place, version, writer, flags, part = cells
    for digest in (5, 6):
        added.add(head, occurrence, slot, digest, dtype, shape, place, version, writer, flags, part)
    extended.extend(cells * 2, [5, 6])
    assert extended.next_seq == added.next_seq
    for name, columns in (("added", added), ("extended", extended)):
        with TraceWriter(tmp_path / name, 0) as trace:
            trace.end_step_columns(1, 0, columns)
    paths = [next((tmp_path / name).rglob("*.arrows")) for name in ("added", "extended")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with pytest.raises(TraceError, match="9 cells for 1 digests"):
        extended.extend(cells[:-1], [5])


@pytest.mark.parametrize("digest", [-1, 2**64, None])
def test_a_digest_that_does_not_fit_is_refused_also_where_the_rest_has_passed(
    tmp_path: Path, digest: int | None
) -> None:
    columns = Columns()
    head = columns.head(0, "clip", "primary", -1, "a", "")
    with TraceWriter(tmp_path, 0) as trace:
        for step in range(2):
            columns.add(head, 0, "s", step, "float32", ())
            trace.end_step_columns(step, 0, columns)
        columns.add(head, 0, "s", digest, "float32", ())  # type: ignore[arg-type]
        with pytest.raises(TraceError):
            trace.end_step_columns(2, 0, columns)
    columns.clear()
