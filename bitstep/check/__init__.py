"""What one run says about itself: replicas, collectives, recomputation, writes.

1. `Check` reads a run that is there, or that goes on, step by step.
2. `Checked` is its answer; each `Finding` names kind, rank, step and tensor.

    check = Check(Path("runs/a"))
    check.result().findings
"""

from bitstep.check.checks import Check
from bitstep.check.finding import Checked, Compared, Finding, Kind, Place, ranks_text

__all__ = ["Check", "Checked", "Compared", "Finding", "Kind", "Place", "ranks_text"]
