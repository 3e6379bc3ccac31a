"""Megatron Core 0.16.1 trains on CPU under the stand-in, in every layout, with the same bits twice.

1. Each layout is run in real processes, twice: losses fall, stay finite, and are the same bits.
2. A run saved by Megatron's own checkpointing and restored goes on with the bits of the one that
   never stopped; where Megatron restores something else, a test says what.

    OMP_NUM_THREADS=1 pytest -q -m long tests/megatron/test_megatron_programs.py
"""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("megatron.core")

HERE = Path(__file__).parent
LAYOUTS = {
    "tp": (2, "--tp 2 --count-zeros --untie"),
    "sequence parallel, bf16": (2, "--tp 2 --sequence-parallel --bf16"),
    "pp": (2, "--pp 2"),
    "interleaved pp": (2, "--pp 2 --vpp 2 --layers 4"),
    "pp with multi-token prediction": (2, "--pp 2 --mtp 1"),
    "dp": (2, ""),
    "distributed optimizer, overlapped": (2, "--distributed-optimizer --overlap --bucket 5000"),
    "distributed optimizer, bf16": (2, "--distributed-optimizer --bf16"),
    "ep": (2, "--ep 2 --experts 4"),
    "ep by all-gather": (2, "--ep 2 --experts 4 --dispatcher allgather"),
    "tp with experts": (2, "--tp 2 --experts 4 --sequence-parallel"),
    "three balancing losses": (
        1,
        "--experts 4 --balance aux_loss,seq_aux_loss,global_aux_loss --z-loss 0.001",
    ),
    "expert bias": (1, "--experts 4 --expert-bias --bf16"),
    "gated, grouped queries, padded vocabulary": (
        1,
        "--gated --query-groups 2 --untie --vocabulary 250",
    ),
    "multi-token prediction": (1, "--mtp 2"),
    "tp x pp": (4, "--tp 2 --pp 2"),
    "tp x distributed optimizer": (4, "--tp 2 --distributed-optimizer"),
    "ep x distributed optimizer": (4, "--ep 2 --experts 4 --distributed-optimizer"),
    "interleaved pp x distributed optimizer, overlapped": (
        4,
        "--pp 2 --vpp 2 --layers 4 --distributed-optimizer --overlap",
    ),
}
RESTORED = {
    "tp": (2, "--tp 2"),
    "sequence parallel, bf16": (2, "--tp 2 --sequence-parallel --bf16"),
    "interleaved pp": (2, "--pp 2 --vpp 2 --layers 4"),
    "pp with multi-token prediction": (2, "--pp 2 --mtp 1 --untie"),
    "ep": (2, "--ep 2 --experts 4"),
    "expert bias": (1, "--experts 4 --expert-bias --bf16"),
    "distributed optimizer": (2, "--distributed-optimizer --overlap --own-steps"),
    "distributed optimizer by buckets": (
        2,
        "--distributed-optimizer --optimizer-sharding dp_reshardable --own-steps",
    ),
    "ep x distributed optimizer": (4, "--ep 2 --experts 4 --distributed-optimizer --own-steps"),
}


def run(processes, flags):
    """The finished process, the lines of its steps and of its weights."""
    program = [HERE / "gpt_program.py", *flags.split()]
    if processes > 1:
        program = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                   str(processes), *program]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, *program], capture_output=True, text=True, env=environment, timeout=300
    )
    lines = done.stdout.splitlines()
    steps = {int(line.split()[1][:-1]): line for line in lines if line.startswith("step ")}
    weights = sorted(line for line in lines if line.startswith("rank "))
    return done, steps, weights


def trained(processes, flags):
    done, steps, weights = run(processes, flags)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(weights) == processes
    return steps, weights


def values(line):
    """Every loss and the norm of one step, by name."""
    return {name: float.fromhex(bits) for name, bits in re.findall(r"([\w ]+) (0x\S+)", line)}


def assert_trains_with_the_same_bits(processes, flags):
    steps, weights = trained(processes, flags)
    assert sorted(steps) == [1, 2, 3, 4, 5, 6]
    assert all(
        map(math.isfinite, (each for line in steps.values() for each in values(line).values()))
    )
    first, last = (next(v for n, v in values(steps[k]).items() if "lm" in n) for k in (1, 6))
    assert last < first
    assert trained(processes, flags) == (steps, weights)
    return steps, weights


def test_one_process_trains_with_the_same_bits_twice_and_with_others_from_another_seed():
    steps, weights = assert_trains_with_the_same_bits(1, "")
    other, other_weights = trained(1, "--seed 1")
    assert other[1] != steps[1]
    assert other_weights != weights


@pytest.mark.long
@pytest.mark.parametrize(("processes", "flags"), LAYOUTS.values(), ids=LAYOUTS)
def test_each_layout_trains_with_the_same_bits_twice(processes, flags):
    assert_trains_with_the_same_bits(processes, flags)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["full", "selective"])
def test_recomputation_changes_no_bit(kind):
    assert trained(1, f"--recompute {kind}") == trained(1, "")


@pytest.mark.long
@pytest.mark.parametrize(("processes", "flags"), RESTORED.values(), ids=RESTORED)
def test_a_restored_run_goes_on_with_the_bits_of_the_uninterrupted(processes, flags, tmp_path):
    steps, weights = trained(processes, f"{flags} --save {tmp_path} --save-at 3")
    restored, restored_weights = trained(processes, f"{flags} --load {tmp_path}")
    assert restored == {step: steps[step] for step in (4, 5, 6)}
    assert restored_weights == weights


@pytest.mark.long
@pytest.mark.parametrize("sharding", ["fully_reshardable", "dp_reshardable"])
def test_megatron_restores_no_steps_of_the_distributed_optimizers_own_adam(sharding, tmp_path):
    flags = f"--distributed-optimizer --optimizer-sharding {sharding}"
    steps, _ = trained(2, f"{flags} --save {tmp_path} --save-at 3")
    restored, _ = trained(2, f"{flags} --load {tmp_path}")
    assert restored[4] == steps[4]  # weights and moments are back; the step that it ends in is off
    assert restored[5] != steps[5]


@pytest.mark.long
def test_megatron_loses_the_tied_embedding_of_an_interleaved_pipeline(tmp_path):
    flags = "--pp 2 --vpp 2 --layers 4 --distributed-optimizer --own-steps"
    done, steps, _ = run(2, f"{flags} --save {tmp_path} --save-at 3")
    assert "'embedding.word_embeddings.weight' param range exceeds unpadded buffer" in done.stderr
    restored, _ = trained(2, f"{flags} --load {tmp_path}")
    assert restored[4] != steps[4]


@pytest.mark.long
def test_megatron_cannot_save_multi_token_prediction_over_a_tied_pipeline(tmp_path):
    done, steps, _ = run(2, f"--pp 2 --mtp 1 --save {tmp_path} --save-at 3")
    assert done.returncode != 0
    assert 3 in steps
    assert "in tie_embeddings_and_output_weights_state_dict" in done.stderr
