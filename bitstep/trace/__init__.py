"""The trace: what a run recorded, as a file format with a contract (docs/trace-format.md).

1. `TraceWriter` writes the records of one process, step by step.
2. `Columns` is the fast way to it, for thousands of rows a step.
3. `read_trace` reads all that is whole and lists what is not.
4. `read_indexes` reads steps and roots alone, then the rows of chosen steps.

    with TraceWriter(directory, process=0) as trace:
        trace.write([Record(0, Site(1, -1, "optimizer", "root"), root, "uint64")])
        trace.end_step(1, root)
    read_trace(directory).steps == {1: root}
"""

from bitstep.trace.columns import Columns
from bitstep.trace.index import IndexEntry
from bitstep.trace.indexes import ProcessIndex, StepBatch, TraceIndex, read_indexes
from bitstep.trace.load import read_index
from bitstep.trace.reader import Trace, read_trace
from bitstep.trace.schema import DEFINITION, FORMAT, metric_bits, metric_value
from bitstep.trace.writer import TraceWriter

__all__ = [
    "DEFINITION",
    "FORMAT",
    "Columns",
    "IndexEntry",
    "ProcessIndex",
    "StepBatch",
    "Trace",
    "TraceIndex",
    "TraceWriter",
    "metric_bits",
    "metric_value",
    "read_index",
    "read_indexes",
    "read_trace",
]
