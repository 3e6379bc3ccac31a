"""Two traces -> where they part, of what kind, and why. Imports no torch.

1. `load` and `place` bring two runs onto the same steps.
2. `align` pairs rows, `localise` follows a process to the first pair that differs.
3. `explain` says of which kind that is, and who was first among the ranks.

    difference = compare_runs(Path("runs/a"), Path("runs/b"))
    print(difference.outcome.name, difference.causes[0].title)
"""

from bitstep.diff.compare import compare_runs
from bitstep.diff.difference import Bits, Cause, Difference, Kind, Received, Shown, Where

__all__ = ["Bits", "Cause", "Difference", "Kind", "Received", "Shown", "Where", "compare_runs"]
