"""Processes of thousands: folders of a thousand, found again, and no other place is a place."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_cases import files_below, step_records, write_steps

from bitstep.errors import TraceError
from bitstep.trace import TraceWriter, read_index, read_indexes, read_trace
from bitstep.trace.index import FileName


@pytest.mark.parametrize(
    ("process", "name"),
    [
        (0, "rank-00000.000"),
        (999, "rank-00999.000"),
        (1000, "ranks-00001/rank-01000.000"),
        (2431, "ranks-00002/rank-02431.000"),
        (123_456_789, "ranks-123456/rank-123456789.000"),
    ],
)
def test_a_thousand_processes_share_a_folder(tmp_path: Path, process: int, name: str) -> None:
    written = write_steps(tmp_path, process, 2)
    assert files_below(tmp_path) == [f"{name}.arrows", f"{name}.index"]
    assert FileName.parse(f"{name}.index") == FileName(process, 0)
    assert list(read_trace(tmp_path).records(process)) == written
    assert [entry.step for entry in read_index(tmp_path / f"{name}.index")] == [1, 2, -1]


def test_processes_of_all_folders_are_one_trace_in_order(tmp_path: Path) -> None:
    for process in (1001, 5, 2000, 1000):
        write_steps(tmp_path, process, 1)
    read = read_trace(tmp_path)
    assert read.processes == read_indexes(tmp_path).processes == (5, 1000, 1001, 2000)
    assert (read.complete, len(list(read.records()))) == (True, 12)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("rank-00000.000.index", "ranks-00001/rank-00000.000.index"),
        ("ranks-00001/rank-01000.000.index", "rank-01000.000.index"),
        ("ranks-00001/rank-01000.000.index", "ranks-00002/rank-01000.000.index"),
        ("ranks-00001/rank-01000.000.index", "ranks-000001/rank-01000.000.index"),
    ],
)
def test_a_file_in_another_folder_is_damage(tmp_path: Path, source: str, target: str) -> None:
    write_steps(tmp_path, 0, 1)
    write_steps(tmp_path, 1000, 1)
    (tmp_path / target).parent.mkdir(exist_ok=True)
    (tmp_path / source).rename(tmp_path / target)
    process = FileName.parse(source)
    assert process is not None
    read = read_trace(tmp_path)
    assert sorted(read.damage) == [
        f"cut: {source}: the index is missing",
        f"damaged: {target!r}: not a name of a trace file, so it was not read",
    ]
    assert list(read.records(process.process)) == []
    assert read_indexes(tmp_path).damage == read.damage


def test_damage_names_the_folder(tmp_path: Path) -> None:
    write_steps(tmp_path, 1000, 1)
    (tmp_path / "ranks-00001" / "rank-01000.000.arrows").write_bytes(b"")
    assert read_trace(tmp_path).damage[0].startswith("cut: ranks-00001/rank-01000.000.arrows, byte")


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_link_or_a_file_in_place_of_a_folder_is_refused(tmp_path: Path, kind: str) -> None:
    write_steps(tmp_path / "elsewhere", 1000, 1)
    (tmp_path / "trace").mkdir()
    folder = tmp_path / "trace" / "ranks-00001"
    if kind == "link":
        folder.symlink_to(tmp_path / "elsewhere" / "ranks-00001")
    else:
        folder.write_text("")
    before = files_below(tmp_path)
    for read in (read_trace, read_indexes):
        with pytest.raises(TraceError, match="ranks-00001: is a link or a file"):
            read(tmp_path / "trace")
    with pytest.raises(TraceError, match=r"ranks-00001/?: (is a link|cannot be made)"):
        TraceWriter(tmp_path / "trace", 1001)
    assert files_below(tmp_path) == before


def test_folders_with_other_names_are_no_business_of_a_trace(tmp_path: Path) -> None:
    write_steps(tmp_path / "attempt", 0, 1)
    write_steps(tmp_path / "attempt" / "checkpoints", 0, 1)
    read = read_trace(tmp_path / "attempt")
    assert (read.complete, list(read.records())) == (True, step_records(1, 4))
