"""Run a program under PyTorch's profiler and write how often each operation ran, as a tree count.

    python profiled.py OUT.json SEEN.json program.py [arguments]

SEEN holds the names of the operations that a recording has. An operation that the profiler saw
counts as seen if a recording has its name; else what it called is looked at; an operation without
any such call below it was missed.
"""

import json
import os
import runpy
import sys
from collections import Counter
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

# What computes nothing: markers, the threads of gloo behind operations that were seen, barriers,
# conversions that were none, questions, dropout of nothing, autograd's own bookkeeping.
NOTHING = (
    "aten::to", "aten::detach_", "aten::_has_compatible_shallow_copy_type", "aten::resolve_",
    "aten::dropout", "autograd::", "gloo:", "c10d::barrier", "FSDP::", "Optimizer.",
    "TorchDynamo", "Torch-Compiled",
)  # fmt: skip


def count(events, seen):
    """Seen operations by name, and missed ones by name."""
    found, missed = Counter(), Counter()

    def walk(event):
        if event.name in seen:
            found[event.name] += 1
            return True
        below = [walk(child) for child in event.cpu_children]
        return any(below)

    for event in events:
        if event.cpu_parent is None and not walk(event) and not event.name.startswith(NOTHING):
            missed[event.name] += 1
    return found, missed


def main(out, seen, program, *arguments):
    sys.argv = [program, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        runpy.run_path(program, run_name="__main__")
    found, missed = count(profiler.events(), set(json.loads(Path(seen).read_text())))
    rank = os.environ.get("RANK", "0")
    with open(f"{out}.{rank}", "w") as file:
        json.dump({"found": found, "missed": missed}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
