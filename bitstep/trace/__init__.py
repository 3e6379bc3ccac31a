"""The trace: what a run recorded, as a file format with a contract (docs/trace-format.md).

1. `TraceWriter` writes the records of one process, step by step.
2. `read_trace` reads all that is whole and lists what is not.
3. `read_index` reads steps and roots alone.

    with TraceWriter(directory, process=0) as trace:
        trace.write([Record(0, Site(1, -1, "optimizer", "root"), root, "uint64")])
        trace.end_step(1, root)
    read_trace(directory).steps == {1: root}
"""

from bitstep.trace.index import IndexEntry, read_index
from bitstep.trace.reader import Trace, read_trace
from bitstep.trace.schema import DEFINITION, FORMAT, metric_bits, metric_value
from bitstep.trace.writer import TraceWriter

__all__ = [
    "DEFINITION",
    "FORMAT",
    "IndexEntry",
    "Trace",
    "TraceWriter",
    "metric_bits",
    "metric_value",
    "read_index",
    "read_trace",
]
