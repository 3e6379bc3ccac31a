"""Cut anywhere, flipped anywhere: what is read is right, and the rest is named as damage."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from trace_cases import (
    ENTRY_BYTES,
    HEADER_BYTES,
    NAME,
    change,
    copy_of_small,
    fresh_copy,
    good_entries,
    step_records,
    write_steps,
)

from bitstep.errors import TraceError
from bitstep.records import Record
from bitstep.trace import Trace, read_index, read_trace

INDEX_BYTES = HEADER_BYTES + 5 * ENTRY_BYTES


def rows_up_to(steps: int) -> list[Record]:
    return [row for step in range(1, steps + 1) for row in step_records(step, 4 * step)]


def assert_prefix(read: Trace, steps: int) -> None:
    assert read.steps == {step: 1000 + step for step in range(1, steps + 1)}
    assert list(read.records()) == rows_up_to(steps)


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
def test_a_stream_cut_at_every_byte_gives_every_whole_step(tmp_path: Path, every: int) -> None:
    whole = copy_of_small(tmp_path, steps=2)
    ends = [entry.end for entry in good_entries(whole)]
    raw = (whole / NAME.stream).read_bytes()
    assert ends[-1] == len(raw)
    for size in sorted({*range(0, len(raw), every), *ends[:-1], *(end - 1 for end in ends)}):
        (whole / NAME.stream).write_bytes(raw[:size])
        read = read_trace(whole)
        steps = sum(end <= size for end in ends)
        assert read.steps == {step: 1000 + step for step in range(1, steps + 1)}
        assert not read.complete
        assert [line.split(": step")[0] for line in read.damage] == [
            f"cut: rank-00000.000.arrows, byte {size}: a step ends at byte {ends[steps]}, "
            "the file here"
        ]
        if size in ends or size + 1 in ends:
            assert_prefix(read, steps)


def test_an_index_cut_at_every_byte_gives_every_vouched_step(tmp_path: Path) -> None:
    whole = copy_of_small(tmp_path)
    raw = (whole / NAME.index).read_bytes()
    assert len(raw) == INDEX_BYTES
    for size in range(len(raw)):
        (whole / NAME.index).write_bytes(raw[:size])
        read = read_trace(whole)
        assert_prefix(read, max(0, size - HEADER_BYTES) // ENTRY_BYTES)
        assert not read.complete
        assert len(read.damage) == 1
        assert read.damage[0].startswith("cut: rank-00000.000.index, byte ")


def test_a_kill_between_stream_and_index_loses_only_its_step(tmp_path: Path) -> None:
    """What SIGKILL leaves: bytes of a step that the index does not know yet."""
    source = copy_of_small(tmp_path)
    ends = [entry.end for entry in good_entries(source)]
    known = HEADER_BYTES + 3 * ENTRY_BYTES
    for size in (ends[2], ends[2] + 1, ends[3]):
        whole = fresh_copy(source, tmp_path / "killed")
        os.truncate(whole / NAME.index, known)
        os.truncate(whole / NAME.stream, size)
        read = read_trace(whole)
        assert_prefix(read, 3)
        assert read.damage == (
            f"cut: rank-00000.000.index, byte {known}: no end marker after 3 steps",
        )


@pytest.mark.parametrize("which", ["index", "stream"])
def test_every_flipped_bit_is_detected_and_no_row_is_wrong(tmp_path: Path, which: str) -> None:
    """500 of each; Arrow alone lets three of four pass, and dies of some."""
    whole = copy_of_small(tmp_path)
    path = whole / getattr(NAME, which)
    raw = path.read_bytes()
    ends = [entry.end for entry in good_entries(whole)]
    rng = random.Random(which)
    for _ in range(500):
        byte, bit = rng.randrange(len(raw)), rng.randrange(8)
        flipped = bytearray(raw)
        flipped[byte] ^= 1 << bit
        path.write_bytes(flipped)
        read = read_trace(whole)
        before = max(0, byte - HEADER_BYTES) // ENTRY_BYTES
        steps = before if which == "index" else sum(end <= byte for end in ends)
        assert_prefix(read, min(steps, 4))
        assert not read.complete
        assert read.damage[0].startswith(f"damaged: rank-00000.000.{path.suffix[1:]}, byte ")


def test_a_flipped_bit_in_an_index_alone_ends_its_entries(tmp_path: Path) -> None:
    """Two runs are compared by their indexes, without the streams: an index proves itself."""
    whole = copy_of_small(tmp_path)
    raw = (whole / NAME.index).read_bytes()
    true = good_entries(whole)
    for byte in range(len(raw)):
        flipped = bytearray(raw)
        flipped[byte] ^= 1 << byte % 8
        (whole / NAME.index).write_bytes(flipped)
        good = max(0, byte - HEADER_BYTES) // ENTRY_BYTES
        assert read_index(whole / NAME.index) == true[:good]


def test_damage_in_one_process_leaves_the_others_whole(tmp_path: Path) -> None:
    first, _ = write_steps(tmp_path, 0, 2), write_steps(tmp_path, 1, 2)
    change(tmp_path / "rank-00001.000.arrows", lambda raw: raw.__setitem__(100, raw[100] ^ 1))
    read = read_trace(tmp_path)
    assert list(read.records(0)) == first
    assert list(read.records(1)) == []
    assert read.damage == ("damaged: rank-00001.000.arrows, byte 0: step 1 fails its checksum",)


def test_damage_ends_a_process_and_counts_the_files_left_unread(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 8, per_file=2)
    change(tmp_path / "rank-00000.001.arrows", lambda raw: raw.__setitem__(9, raw[9] ^ 1))
    read = read_trace(tmp_path)
    assert list(read.steps) == [1, 2]
    assert read.damage == (
        "damaged: rank-00000.001.arrows, byte 0: step 3 fails its checksum; "
        "2 later files of the process were not read",
    )


@pytest.mark.parametrize("suffix", ["index", "arrows"])
def test_a_lost_rotation_is_seen(tmp_path: Path, suffix: str) -> None:
    write_steps(tmp_path, 0, 6, per_file=2)
    (tmp_path / f"rank-00000.001.{suffix}").unlink()
    read = read_trace(tmp_path)
    assert list(read.steps) == [1, 2]
    assert read.damage[0].startswith(f"cut: rank-00000.001.{suffix}")
    assert read.damage[0].endswith("missing; 1 later files of the process were not read")


def test_a_lost_last_rotation_is_seen(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 6, per_file=2)
    for path in tmp_path.glob("rank-00000.002.*"):
        path.unlink()
    read = read_trace(tmp_path)
    assert list(read.steps) == [1, 2, 3, 4]
    assert read.damage == ("cut: rank-00000.002.arrows: the file is missing",)
    assert not read.complete


def test_files_that_change_while_they_are_read_are_an_error(tmp_path: Path) -> None:
    whole = copy_of_small(tmp_path)
    read = read_trace(whole)
    change(whole / NAME.stream, lambda raw: raw.__setitem__(9, raw[9] ^ 1))
    with pytest.raises(TraceError, match="changed while it was read"):
        list(read.records())
