"""What a recording did is counted from its trace."""

from bitstep.records import Flag
from bitstep.trace import Columns, TraceWriter
from bitstep.trace.hashed import counted, nbytes_of


def test_bytes_of_a_row_follow_from_dtype_and_shape():
    assert nbytes_of("bfloat16", [3, 5]) == 30
    assert nbytes_of("float32[1,0]", [4, 2]) == 32
    assert nbytes_of("float32", []) == 4
    assert nbytes_of("text", []) == 0


def test_carried_and_skipped_rows_were_not_hashed(tmp_path):
    columns = Columns()
    head = columns.head(0, "forward", "primary", 0, "Net", "aten.mm")
    columns.add(head, 0, "in.0", 1, "float32", (2, 2))
    columns.add(head, 0, "in.1", 1, "float32", (2, 2), flags=int(Flag.CARRIED))
    columns.add(head, 0, "out.0", 0, "float32", (2, 2), flags=int(Flag.SKIPPED))
    with TraceWriter(tmp_path / "attempt-000", process=0) as trace:
        trace.end_step_columns(1, 5, columns)
    found = counted(tmp_path)
    assert (found.steps, found.rows, found.hashed) == (1, 3, 16)
    assert found.written == sum(f.stat().st_size for f in (tmp_path / "attempt-000").iterdir())
