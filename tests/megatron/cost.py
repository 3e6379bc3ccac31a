"""What recording costs a Megatron run, per level: paired fresh launches, the bare one beside it.

    python tests/megatron/cost.py 2 --tp 2 --hidden 256 --sequence 128 --micro-batch 4

A step is timed from outside, by the moment at which its line is printed; the program is not edited.
Of the ratios of pairs the median is given. Nothing else should run meanwhile.
"""

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
LEVELS = ("step", "phase", "module", "op")
PAIRS, STEPS, WARM_UP = 3, 14, 4


def seconds(processes, flags, level):
    """The median time between two lines of steps, after a warm-up."""
    launch = [BIN / "torchrun", f"--nproc-per-node={processes}", HERE / "gpt_program.py"]
    words = [*launch, *flags, "--steps", STEPS]
    with tempfile.TemporaryDirectory() as folder:
        if level is not None:
            words = [BIN / "bitstep", "-q", "record", "-o", f"{folder}/run", "--level", level, "--",
                     *words]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            list(map(str, words)), env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        ) as running:  # fmt: skip
            moments = [time.perf_counter() for line in running.stdout if line.startswith("step ")]
        assert running.returncode == 0, words
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    return statistics.median(gaps[WARM_UP:])


def main(processes, *flags):
    for level in LEVELS:
        bare, ratios = [], []
        for pair in range(PAIRS):
            order = (None, level) if pair % 2 else (level, None)
            found = {arm: seconds(processes, flags, arm) for arm in order}
            bare.append(found[None])
            ratios.append(found[level] / found[None])
        spread = f"{min(ratios):.3f}-{max(ratios):.3f}"
        print(f"{level:8} {statistics.median(ratios):.3f} ({spread})  "
              f"bare {1000 * statistics.median(bare):.0f} ms", flush=True)  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
