"""Indexes alone name steps and roots; rows of chosen steps are read without the others."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from trace_cases import (
    NAME,
    Segment,
    change,
    op_records,
    segments_of,
    step_records,
    vouch,
    write_op_steps,
    write_steps,
)

from bitstep.errors import TraceError
from bitstep.records import Record
from bitstep.trace import TraceWriter, read_index, read_indexes, read_trace
from bitstep.trace.index import CLOSED
from bitstep.trace.rows import decode


def rows_of(directory: Path, process: int, steps: list[int] | None = None) -> list[Record]:
    found = list(read_indexes(directory).batches(process, steps))
    assert [step.damage for step in found] == [None] * len(found)
    return [row for step in found for row in decode(step.batch)]


def flip(directory: Path, step: int) -> None:
    """A bit in the bytes of a step of process 0."""
    end = {entry.step: entry.end for entry in read_index(directory / NAME.index)}[step]
    change(directory / NAME.stream, lambda raw: raw.__setitem__(end - 4, raw[end - 4] ^ 4))


def test_steps_of_all_files_of_a_process_are_one_array(tmp_path: Path) -> None:
    written = write_steps(tmp_path, 3, 5, per_file=2)
    index = read_indexes(tmp_path)
    assert (index.processes, index.damage, index.complete) == ((3,), (), True)
    mine = index.process(3)
    assert mine.step.tolist() == [1, 2, 3, 4, 5]
    assert mine.rows.tolist() == [3] * 5
    assert mine.root.tolist() == [1001, 1002, 1003, 1004, 1005]
    assert mine.dictionaries.tolist() == [7, 1, 7, 1, 7]
    assert mine.end[1] > mine.end[0]
    assert mine.end[2] < mine.end[1]
    assert [array.dtype.str for array in (mine.step, mine.rows, mine.root, mine.bytes_sum)] == [
        "<i8", "<u4", "<u8", "<u8",
    ]  # fmt: skip
    assert (mine.closed, mine.damage) == (True, ())
    assert rows_of(tmp_path, 3) == written


def test_a_process_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    write_steps(tmp_path, 3, 1)
    with pytest.raises(TraceError, match="holds no trace of process 0"):
        read_indexes(tmp_path).process(0)


def test_an_empty_directory_is_cut(tmp_path: Path) -> None:
    index = read_indexes(tmp_path)
    assert (index.processes, index.complete) == ((), False)
    assert index.damage == (f"cut: {tmp_path.name}: no trace file",)


def test_a_run_of_no_steps_has_empty_arrays(tmp_path: Path) -> None:
    TraceWriter(tmp_path, 0).close()
    index = read_indexes(tmp_path)
    assert (index.process(0).step.tolist(), index.complete) == ([], True)
    assert (list(index.batches(0)), index.batch(0, 1)) == ([], None)


def test_streams_are_not_opened_for_an_index(tmp_path: Path) -> None:
    """A stream of zeros of the right length passes until its bytes are asked for."""
    write_steps(tmp_path, 0, 2)
    size = (tmp_path / NAME.stream).stat().st_size
    (tmp_path / NAME.stream).write_bytes(bytes(size))
    assert read_indexes(tmp_path).complete
    assert read_trace(tmp_path).damage == (
        "damaged: rank-00000.000.arrows, byte 0: step 1 fails its checksum",
    )


def test_chosen_steps_are_read_over_files_in_order(tmp_path: Path) -> None:
    write_op_steps(tmp_path, 0, 7, per_file=3)
    calls = len(op_records(1, 0))
    for chosen in ([1], [7], [2, 5], [6, 3, 3, 99], range(1, 8), np.array([4, 2]), {5}):
        steps = sorted({int(step) for step in chosen} & set(range(1, 8)))
        found = list(read_indexes(tmp_path).batches(0, iter(chosen)))
        assert [step.step for step in found] == steps
        assert [step.rotation for step in found] == [(step - 1) // 3 for step in steps]
        assert [row for step in found for row in decode(step.batch)] == [
            row for step in steps for row in op_records(step, calls * (step - 1))
        ]
    assert list(read_indexes(tmp_path).batches(0, [])) == []


def test_one_step_or_none(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 4, per_file=2)
    found = read_indexes(tmp_path).batch(0, 3)
    assert found is not None
    assert (found.step, list(decode(found.batch))) == (3, step_records(3, 12))
    assert read_indexes(tmp_path).batch(0, 5) is None
    assert read_indexes(tmp_path).batch(0, -1) is None


def same_words(directory: Path, steps: int) -> None:
    """Steps of which only the first brings words."""
    with TraceWriter(directory, 0) as trace:
        for step in range(1, steps + 1):
            rows = [row for row in op_records(1, 100 * step) if row.site.slot != "mutated"]
            trace.write([row._replace(site=row.site._replace(step=step)) for row in rows])
            trace.end_step(step, step)


def test_damage_of_steps_that_bring_no_words_is_passed_over(tmp_path: Path) -> None:
    same_words(tmp_path, 6)
    index = read_indexes(tmp_path)
    assert index.process(0).dictionaries.tolist() == [7, 0, 0, 0, 0, 0]
    flip(tmp_path, 3)
    found = list(index.batches(0, [2, 5]))
    assert [(step.step, step.damage) for step in found] == [(2, None), (5, None)]


def test_damage_is_a_value_and_ends_the_process(tmp_path: Path) -> None:
    same_words(tmp_path, 6)
    index = read_indexes(tmp_path)
    flip(tmp_path, 3)
    start = int(index.process(0).end[1])
    line = f"damaged: rank-00000.000.arrows, byte {start}: step 3 fails its checksum"
    found = list(index.batches(0))
    assert [(step.step, step.damage, step.batch is None) for step in found] == [
        (1, None, False), (2, None, False), (3, line, True),
    ]  # fmt: skip
    assert index.batch(0, 3) == (3, None, line, 0)


def test_damage_ends_the_later_files_of_a_process_too(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 6, per_file=2)
    index = read_indexes(tmp_path)
    flip(tmp_path, 2)
    assert [step.step for step in index.batches(0)] == [1, 2]
    assert [step.step for step in index.batches(0, [2, 5])] == [2]
    assert [step.step for step in index.batches(0, [5, 6])] == [5, 6]


def test_words_of_steps_passed_over_are_known_and_later_ones_are_not_read(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 4)
    assert read_indexes(tmp_path).process(0).dictionaries.tolist() == [7, 1, 1, 1]
    assert rows_of(tmp_path, 0, [4]) == step_records(4, 16)
    flip(tmp_path, 4)
    assert rows_of(tmp_path, 0, [3]) == step_records(3, 12)


def test_the_first_step_of_a_file_is_always_read(tmp_path: Path) -> None:
    """It holds the schema, whatever a hostile index says of its words."""
    same_words(tmp_path / "true", 2)
    first, second, end = segments_of(tmp_path / "true")
    vouch(tmp_path / "false", [first._replace(dictionaries=0), second, end])
    found = read_indexes(tmp_path / "false").batch(0, 2)
    assert found is not None
    assert (found.step, "step 1 with 0 dictionaries" in str(found.damage)) == (1, True)


def test_damage_of_words_is_damage_of_all_that_follow_in_the_file(tmp_path: Path) -> None:
    write_op_steps(tmp_path, 0, 4)
    index = read_indexes(tmp_path)
    flip(tmp_path, 1)
    line = "damaged: rank-00000.000.arrows, byte 0: step 1 fails its checksum"
    assert list(index.batches(0, [4])) == [(1, None, line, 0)]


def test_the_end_of_a_stream_is_read_with_all_steps(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 2)
    index = read_indexes(tmp_path)
    flip(tmp_path, CLOSED)
    assert [(step.step, step.damage is None) for step in index.batches(0)] == [
        (1, True), (2, True), (CLOSED, False),
    ]  # fmt: skip
    assert [step.damage for step in index.batches(0, [1, 2])] == [None, None]


def test_a_stream_that_is_cut_is_seen_by_its_size(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 3)
    ends = [entry.end for entry in read_index(tmp_path / NAME.index)]
    raw = (tmp_path / NAME.stream).read_bytes()
    for whole, size in ((0, 0), (0, ends[0] - 1), (1, ends[0]), (2, ends[2] - 1), (3, ends[2])):
        os.truncate(tmp_path / NAME.stream, size)
        index = read_indexes(tmp_path)
        assert index.process(0).step.tolist() == [1, 2, 3][:whole]
        assert index.damage == read_trace(tmp_path).damage
        assert index.process(0).damage == index.damage
        assert not index.process(0).closed
        assert len(list(index.batches(0))) == whole
        (tmp_path / NAME.stream).write_bytes(raw)


def test_files_that_are_lost_or_follow_an_end_are_the_same_lines_as_of_a_trace(
    tmp_path: Path,
) -> None:
    for number, lost in enumerate(("000.index", "001.index", "001.arrows", "002.arrows")):
        folder = tmp_path / str(number)
        write_steps(folder, 0, 6, per_file=2)
        (folder / f"rank-00000.{lost}").unlink()
        assert read_indexes(folder).damage == read_trace(folder).damage
        assert len(read_indexes(folder).damage) == 1
    segments = segments_of(folder)
    vouch(folder, [*segments[:-1], segments[-1]._replace(step=CLOSED)])
    assert "it follows an end marker" in read_indexes(folder).damage[0]


def test_a_stream_that_shrinks_after_its_index_was_read_is_damage(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 3)
    index = read_indexes(tmp_path)
    os.truncate(tmp_path / NAME.stream, int(index.process(0).end[1]))
    assert [(step.step, step.damage) for step in index.batches(0, [2, 3])][1] == (
        3, f"cut: rank-00000.000.arrows, byte {index.process(0).end[1]}: a step ends at byte "
        f"{index.process(0).end[2]}, the file here",
    )  # fmt: skip
    (tmp_path / NAME.stream).unlink()
    line = "cut: rank-00000.000.arrows, byte 0: the stream is missing"
    assert list(index.batches(0)) == [(1, None, line, 0)]
    index = read_indexes(tmp_path)
    assert (index.damage, list(index.batches(0)), index.batch(0, 1)) == ((line,), [], None)


def test_an_index_that_hides_words_gives_no_row(tmp_path: Path) -> None:
    """Passing over a step is only right if it brings no words; where it is read, it is checked."""
    write_steps(tmp_path / "true", 0, 3)
    first, second, third, end = segments_of(tmp_path / "true")
    vouch(tmp_path / "false", [first, second._replace(dictionaries=0), third, end])
    index = read_indexes(tmp_path / "false")
    found = list(index.batches(0))
    assert [step.step for step in found] == [1, 2]
    assert "with 0 dictionaries, the bytes hold something else" in str(found[1].damage)
    hidden = index.batch(0, 3)
    assert hidden is not None
    assert "damaged" in str(hidden.damage)


def test_words_come_only_from_steps_that_pass_every_check(tmp_path: Path) -> None:
    write_steps(tmp_path / "true", 0, 2)
    first, second, end = segments_of(tmp_path / "true")
    vouch(tmp_path / "false", [first._replace(rows=2), second, end])
    found = read_indexes(tmp_path / "false").batch(0, 2)
    assert found is not None
    assert "3 rows where the index says 2" in str(found.damage)


@pytest.mark.parametrize("extra", [b"", b"\0" * 47])
def test_many_entries_are_read_in_pieces(tmp_path: Path, extra: bytes) -> None:
    """More than one megabyte of index, whole and with an entry that was not finished."""
    steps = 45_000
    vouch(tmp_path, [Segment(step, 0, step, b"x") for step in range(steps)])
    with (tmp_path / NAME.index).open("ab") as file:
        file.write(extra)
    mine = read_indexes(tmp_path).process(0)
    assert np.array_equal(mine.root, np.arange(steps, dtype=np.uint64))
    words = "the entry after 45000 steps is not whole" if extra else "no end marker after 45000"
    assert words in mine.damage[0]
    change(tmp_path / NAME.index, lambda raw: raw.__setitem__(56 + 48 * 44_000, 77))
    mine = read_indexes(tmp_path).process(0)
    assert (len(mine.step), "byte 2112056: " in mine.damage[0]) == (44_000, True)


def test_steps_increase_from_piece_to_piece(tmp_path: Path) -> None:
    steps = [*range(20_000), 19_999, 20_001]
    vouch(tmp_path, [Segment(step, 0, step, b"x") for step in steps])
    mine = read_indexes(tmp_path).process(0)
    assert len(mine.step) == 20_000
    assert "step 19999 after step 19999" in mine.damage[0]


def test_nothing_follows_an_end_marker_in_the_next_piece(tmp_path: Path) -> None:
    steps = [*range(19_999), CLOSED, 20_001]
    vouch(tmp_path, [Segment(step, 0, max(step, 0), b"x") for step in steps])
    index = read_indexes(tmp_path)
    assert len(index.process(0).step) == 19_999
    assert "something follows the end marker" in index.damage[0]
