"""Megatron runs, recorded without an edit: nothing changes, everything of a step is there, equal
runs are the same, and a run that goes on from Megatron's own checkpoint is told from one that never
stopped."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bitstep.faults import fault_environment, parse_flips
from bitstep.trace import read_trace

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
PROGRAM = HERE / "gpt_program.py"
LAYOUTS = {
    # Name: processes and flags.
    "dense": (1, ""),
    "tensor parallel": (2, "--tp 2"),
    "sequence parallel, recomputed": (2, "--tp 2 --sequence-parallel --recompute full"),
    "pipeline": (2, "--pp 2"),
    "interleaved pipeline": (2, "--pp 2 --vpp 2 --layers 4"),
    "distributed optimizer": (2, "--distributed-optimizer --count-zeros"),
    "overlapped": (2, "--distributed-optimizer --overlap --bucket 4000"),
    "16 bits": (2, "--distributed-optimizer --bf16 --gated"),
    "experts": (2, "--ep 2 --experts 4 --z-loss 0.001 --expert-bias"),
    "multi-token": (1, "--mtp 1"),
    "tensor and pipeline": (4, "--tp 2 --pp 2"),
    "tensor and data": (4, "--tp 2 --distributed-optimizer --bf16"),
    "experts and data": (4, "--ep 2 --experts 4 --distributed-optimizer"),
}
ALWAYS = {"data", "forward", "backward", "reduce", "clip", "optimizer"}
"""Phases of a step in every layout."""


def launch(processes, flags, *, steps=3):
    words = [BIN / "torchrun", f"--nproc-per-node={processes}", PROGRAM] if processes > 1 else [
        sys.executable, PROGRAM]  # fmt: skip
    return [*map(str, words), *flags.split(), "--steps", str(steps)]


def run(words, folder, *prefix):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*map(str, prefix), *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(line for line in done.stdout.splitlines() if line.startswith(("step", "rank")))


def record(words, folder, name, level="op"):
    return run(words, folder, BIN / "bitstep", "-q", "record", "-o", name, "--level", level, "--")


def diff(folder, a, b):
    done = subprocess.run(
        [BIN / "bitstep", "diff", a, b], cwd=folder, capture_output=True, text=True
    )
    return done.returncode, done.stdout


def rows_of(run_folder, step):
    """(phase, slot) -> rows of a step, over all ranks, and the gaps of the recording."""
    trace = read_trace(run_folder / "attempt-000")
    found, gaps = Counter(), []
    for process in trace.processes:
        for record_ in trace.records(process=process):
            site = record_.site
            if site.slot == "gap":
                gaps.append(site.op)
            if site.step == step:
                found[site.phase, site.slot.partition(".")[0]] += 1
    return found, gaps


METRICS = {
    ("backward", "metric.loss", ""),
    ("clip", "metric.grad_norm", ""),
    ("clip", "metric.num_zeros", ""),
    ("forward", "metric.lm loss", ""),
    ("forward", "metric.load_balancing_loss", "layer 1"),
    ("forward", "metric.load_balancing_loss", "layer 2"),
    ("optimizer", "metric.load_balancing_loss (reduced)", ""),
    ("optimizer", "metric.updated", ""),
}
STREAMS = {"data-parallel-rng", "expert-parallel-rng", "model-parallel-rng"}


def test_a_recorded_run_prints_the_bits_of_a_bare_one_and_has_all_that_megatron_knows(tmp_path):
    words = launch(1, "--experts 2 --count-zeros", steps=2)
    assert record(words, tmp_path, "a") == run(words, tmp_path)
    found, gaps = rows_of(tmp_path / "a", 2)
    assert {phase for phase, _ in found} >= ALWAYS
    assert gaps == []
    sites = [row.site for row in read_trace(tmp_path / "a" / "attempt-000").records(process=0)]
    last = [site for site in sites if site.step == 2]
    metrics = {(s.phase, s.slot, s.module) for s in last if s.slot.startswith("metric.")}
    assert metrics == METRICS
    streams = {s.module for s in last if s.slot == "rng" and s.module.startswith("tracker:")}
    assert streams == {f"tracker:{name}" for name in STREAMS}
    reduced = {s.op for s in last if s.phase == "reduce" and s.slot == "grad"}
    assert reduced == {"before grad_sync", "after grad_sync"}
    assert {s.microbatch for s in last if s.phase == "forward" and s.module} == {0, 1}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_equal_runs_are_the_same_down_to_each_operation(layout, tmp_path):
    words = launch(*LAYOUTS[layout])
    bare = run(words, tmp_path)
    assert record(words, tmp_path, "a") == bare
    assert record(words, tmp_path, "b") == bare
    status, said = diff(tmp_path, "a", "b")
    assert (status, said[:10]) == (0, "the same: "), said
    found, gaps = rows_of(tmp_path / "a", 3)
    assert gaps == []
    phases = {phase for phase, _ in found}
    assert phases >= ALWAYS
    flags = LAYOUTS[layout][1].split()
    assert ("exchange" in phases) >= ("--pp" in flags)
    assert ("gather" in phases) >= ("--distributed-optimizer" in flags)
    print(f"\n{layout}: " + ", ".join(f"{p} {sum(n for (q, _), n in found.items() if q == p)}"
                                      for p in sorted(phases)))  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(600)
def test_one_flipped_bit_is_named_by_its_step_rank_and_global_layer(tmp_path):
    """The control of the test above."""
    words = launch(2, "--pp 2", steps=2)
    record(words, tmp_path, "a")
    flip = parse_flips("output step=2 rank=1 op=aten.mm phase=forward bit=20")
    environment = {**os.environ, **fault_environment(tmp_path / "fault", flip)}
    subprocess.run(
        [BIN / "bitstep", "-q", "record", "-o", "b", "--", *words],
        cwd=tmp_path, env=environment, check=True, capture_output=True,
    )  # fmt: skip
    status, said = diff(tmp_path, "a", "b")
    assert status == 1
    assert said.startswith("different: origin, step 2, rank 1\n"), said
    assert "aten.mm #0 in GPTModel.decoder.layers.1.self_attention.linear_qkv" in said


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_distributed_optimizer_leaves_the_same_logical_state(tmp_path):
    for name, flags in (("a", ""), ("b", "--distributed-optimizer")):
        record(launch(2, f"--clip-grad 0 {flags}"), tmp_path, name, "step")
    status, said = diff(tmp_path, "a", "b")
    # What the two were told comes first: it could change bits, and did not.
    assert said.startswith("can change bits: arguments.distributed-optimizer: (absent) in A, true")
    assert status == 0, said
    assert "\nthe same: 10 logical roots are equal" in said
    assert "logical roots are equal, in two layouts" in said


@pytest.mark.long
@pytest.mark.timeout(600)
def test_another_logical_state_is_found_across_layouts_by_its_tensors(tmp_path):
    """The control of the test above: another learning rate, which is 0 in the first step."""
    for name, flags in (("a", ""), ("b", "--distributed-optimizer --lr 0.011")):
        record(launch(2, f"--clip-grad 0 {flags}"), tmp_path, name, "phase")
    status, said = diff(tmp_path, "a", "b")
    assert status == 1
    assert "\ndifferent: logical state, step 2\n" in said, said
    assert "the params are others, summed over all ranks of each run" in said
