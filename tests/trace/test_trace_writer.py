"""The writer overwrites nothing, loses at most one step, and says which file it could not write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from trace_cases import NAME, full_record, step_records, write_steps

from bitstep.errors import TraceError
from bitstep.records import Box, Record, Site
from bitstep.trace import TraceWriter, read_trace

HERE = str(Path(__file__).parent)


def in_child(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh Python that can import the cases."""
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "PYTHONPATH": HERE},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_second_writer_is_refused_and_nothing_is_overwritten(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 3, per_file=2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(TraceError, match=r"rank-00000.* exists already: write to a new directory"):
        TraceWriter(tmp_path, 0)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    TraceWriter(tmp_path, 1).close()


@pytest.mark.parametrize("left", ["rank-00000.000.arrows", "rank-00000.000.index"])
def test_half_a_pair_is_not_written_over(tmp_path: Path, left: str) -> None:
    (tmp_path / left).write_bytes(b"mine")
    with pytest.raises(TraceError, match=f"{left}: exists already"):
        TraceWriter(tmp_path, 0)
    assert [path.name for path in tmp_path.iterdir()] == [left]


@pytest.mark.parametrize("left", ["rank-00000.001.arrows", "rank-00000.001.index"])
def test_a_rotation_is_not_written_over(tmp_path: Path, left: str) -> None:
    """The file came after the writer began; the one it had just made itself is taken away."""
    trace = TraceWriter(tmp_path, 0, steps_per_file=1)
    trace.end_step(1, 1)
    (tmp_path / left).write_bytes(b"mine")
    with pytest.raises(TraceError, match=f"{left}: exists already"):
        trace.end_step(2, 2)
    assert (tmp_path / left).read_bytes() == b"mine"
    assert [path.name for path in tmp_path.glob("rank-00000.001.*")] == [left]


def test_short_writes_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may take only some of the bytes, as it does when the disk is nearly full."""
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, raw: whole(file, raw[:1000]))
    written = write_steps(tmp_path, 0, 2)
    monkeypatch.undo()
    assert list(read_trace(tmp_path).records()) == written


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / NAME.stream).symlink_to(tmp_path / "target")
    with pytest.raises(TraceError, match="exists already"):
        TraceWriter(tmp_path / "trace", 0)
    assert not (tmp_path / "target").exists()


def test_two_writers_of_one_directory_and_two_processes(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, 0) as first, TraceWriter(tmp_path, 1) as second:
        for step in (1, 2):
            for trace in (first, second):
                trace.write(step_records(step, 4 * step))
                trace.end_step(step, step)
    read = read_trace(tmp_path)
    assert (read.complete, read.steps) == (True, {1: 1, 2: 2})
    assert list(read.records(0)) == list(read.records(1))


@pytest.mark.parametrize(
    ("records", "step", "root", "words"),
    [
        (step_records(2, 8), 2, -1, "root -1 of step 2 is not an unsigned 64-bit number"),
        (step_records(2, 8), 2, 2**64, "is not an unsigned 64-bit number"),
        (step_records(1, 8), 1, 0, "step 1 after step 1: steps must increase"),
        ([], -5, 0, "step -5 after step 1"),
        (step_records(3, 8), 2, 0, "a row of step 3 in the batch of step 2"),
        (step_records(2, 1), 2, 0, "seq 1 comes after seq 7"),
        ([full_record(9, 2), full_record(9, 2)], 2, 0, "seq 9 comes after seq 9"),
        ([full_record(9, 2)._replace(digest=-1)], 2, 0, "does not fit the columns"),
        ([full_record(9, 2)._replace(digest=2**64)], 2, 0, "does not fit the columns"),
        ([full_record(9, 2)._replace(digest=None)], 2, 0, "column digest holds 1 nulls"),
        ([full_record(9, 2)._replace(dtype=None)], 2, 0, "column dtype holds 1 nulls"),
        ([full_record(9, 2)._replace(shape=(-1,), place=None)], 2, 0, "negative size"),
        ([full_record(9, 2)._replace(dtype="\ud800")], 2, 0, "does not fit the columns"),
        ([full_record(9, 2)._replace(shape=(6, 4, 1))], 2, 0, "a part of a tensor of shape (6, 4)"),
        ([full_record(9, 2)._replace(place=Box((6, 4), (4, 0), (3, 4)))], 2, 0, "does not lie"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_file_ends_before_it(
    tmp_path: Path, records: list[Record], step: int, root: int, words: str
) -> None:
    trace = TraceWriter(tmp_path, 0)
    trace.write(step_records(1, 4))
    trace.end_step(1, 1001)
    trace.write(records)
    with pytest.raises(TraceError) as caught:
        trace.end_step(step, root)
    assert words in str(caught.value)
    assert NAME.stream in str(caught.value)
    with pytest.raises(TraceError, match="closed: a step cannot be added"):
        trace.end_step(9, 0)
    trace.close()
    read = read_trace(tmp_path)
    assert (list(read.records()), read.complete) == (step_records(1, 4), False)


@pytest.mark.parametrize(("process", "per_file"), [(-1, 1), (2**32, 1), (0, 0)])
def test_numbers_that_do_not_count_are_refused(tmp_path: Path, process: int, per_file: int) -> None:
    with pytest.raises(TraceError, match="steps per file"):
        TraceWriter(tmp_path, process, per_file)
    assert list(tmp_path.iterdir()) == []


def test_rows_without_an_end_of_step_are_an_error_at_close(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path, 0)
    trace.write(step_records(1, 0))
    with pytest.raises(TraceError, match="3 records after step -1 belong to no step"):
        trace.close()
    assert not read_trace(tmp_path).complete


def test_an_exception_in_the_block_leaves_no_end_marker(tmp_path: Path) -> None:
    def failing_run() -> None:
        with TraceWriter(tmp_path, 0) as trace:
            trace.write(step_records(1, 4))
            trace.end_step(1, 1001)
            raise KeyError

    with pytest.raises(KeyError):
        failing_run()
    read = read_trace(tmp_path)
    assert (list(read.steps), read.complete) == ([1], False)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="file/trace: cannot be made"):
        TraceWriter(tmp_path / "file" / "trace", 0)


def test_a_rotation_into_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "trace", 0, steps_per_file=1)
    trace.end_step(1, 1)
    (tmp_path / "trace").rename(tmp_path / "moved")
    with pytest.raises(TraceError, match=r"rank-00000.001.arrows: cannot be made: No such file"):
        trace.end_step(2, 2)
    assert list(read_trace(tmp_path / "moved").steps) == [1]


KILLED = """
import os, signal, sys
from pathlib import Path
from trace_cases import step_records
from bitstep.trace import TraceWriter
trace = TraceWriter(Path(sys.argv[1]), 0)
for step in range(1, 8):
    trace.write(step_records(step, 4 * step))
    trace.end_step(step, 1000 + step)
trace.write(step_records(8, 32))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_every_ended_step(tmp_path: Path) -> None:
    assert in_child(KILLED, str(tmp_path)).returncode == -signal.SIGKILL
    read = read_trace(tmp_path)
    assert list(read.records()) == [row for s in range(1, 8) for row in step_records(s, 4 * s)]
    assert [line[:28] for line in read.damage] == ["cut: rank-00000.000.index, b"]


FULL = """
import resource, sys
from pathlib import Path
from trace_cases import step_records
from bitstep.errors import TraceError
from bitstep.trace import TraceWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    trace = TraceWriter(Path(sys.argv[1]), 0)
    for step in range(1, 50):
        trace.write(step_records(step, 4 * step))
        trace.end_step(step, 1000 + step)
except TraceError as error:
    print(error)
    trace.close()
"""


@pytest.mark.parametrize("limit", [7000, 9999, 12345])
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path, limit: int) -> None:
    """A file size limit stands for a full disk: the same short write, then the same error."""
    child = in_child(FULL, str(tmp_path), str(limit))
    assert child.stderr == ""
    assert child.stdout.startswith(f"{tmp_path / NAME.stream}: cannot be written: ")
    read = read_trace(tmp_path)
    whole = len(read.steps)
    assert whole >= 1
    assert list(read.records()) == [
        row for step in range(1, whole + 1) for row in step_records(step, 4 * step)
    ]
    assert not read.complete


def test_a_full_disk_under_the_index_keeps_what_was_vouched_for(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path, 0)
    trace.write([Record(0, Site(1, -1, "clip", "root"), 1, "uint64")])
    trace.end_step(1, 1)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, trace._file._index)
    os.close(full)
    with pytest.raises(TraceError, match=r"rank-00000.000.index: cannot be written: No space"):
        trace.end_step(2, 2)
    assert list(read_trace(tmp_path).steps) == [1]
