"""Draw docs/figures/nano_loss.svg from the trace of a run.

python docs/figures/nano_loss.py demo/run docs/figures/nano_loss.svg
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from bitstep.report import log_json


def draw(run: Path, target: Path) -> None:
    """Training and held-out loss over steps."""
    matplotlib.rcParams["svg.hashsalt"] = "bitstep"  # the same run gives the same bytes
    steps = [row for row in log_json(run) if row["kind"] == "step" and not row["is_start"]]
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for name, label, style in (
        ("loss", "next token, training", "-"),
        ("mtp_1", "token after next, training", "-"),
        ("eval_loss", "next token, held out", "o"),
    ):
        points = [(s["step"], s["metrics"][name]["value"]) for s in steps if name in s["metrics"]]
        axes.plot(*zip(*points, strict=True), style, label=label, linewidth=1.2, markersize=4)
    last = steps[-1]
    axes.set_title(f"nano on the Python standard library, state root {last['root']}", fontsize=9)
    axes.set_xlabel("step")
    axes.set_ylabel("nats per byte")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
