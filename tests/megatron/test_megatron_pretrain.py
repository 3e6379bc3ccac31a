"""Megatron's own `pretrain_gpt.py`, unedited, from the checkout that MEGATRON_LM names.

1. `bootstrap/sitecustomize.py` on PYTHONPATH puts the stand-in in place; nothing else is changed.
2. Mock data, a null tokenizer and local layers let it train without a GPU and without a file.
3. Tried with core_v0.16.1. A checkout wants `six` and `triton` installed, and `pybind11` or the
   wheel's `helpers_cpp` beside its `megatron/core/datasets/helpers.cpp`.

    MEGATRON_LM=~/Megatron-LM pytest -q -m long tests/megatron/test_megatron_pretrain.py
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHECKOUT = os.environ.get("MEGATRON_LM")
FLAGS = """
    --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16
    --max-position-embeddings 16 --micro-batch-size 2 --global-batch-size 4
    --train-iters 4 --lr 1e-2 --lr-decay-style cosine --log-interval 1
    --eval-iters 0 --eval-interval 100 --split 1,0,0
    --mock-data --tokenizer-type NullTokenizer --vocab-size 255
    --distributed-backend gloo --transformer-impl local --attention-backend unfused
    --no-persist-layer-norm --no-masked-softmax-fusion --no-bias-gelu-fusion
    --no-bias-swiglu-fusion --no-bias-dropout-fusion --no-rope-fusion
    --no-gradient-accumulation-fusion
"""
LAYOUTS = {
    "one process": (1, ""),
    "tp": (2, "--tensor-model-parallel-size 2"),
    "distributed optimizer": (2, "--use-distributed-optimizer"),
    "pp with experts": (
        2,
        "--pipeline-model-parallel-size 2 --num-experts 4 --disable-bias-linear",
    ),
}

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not CHECKOUT, reason="not run: MEGATRON_LM names no checkout"),
]


def losses(processes, flags, *prefix):
    """What `pretrain_gpt.py` prints as its loss at each step, the last digits included."""
    paths = [str(HERE / "bootstrap"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    launch = [*prefix, sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc-per-node", str(processes), Path(CHECKOUT) / "pretrain_gpt.py"]
    done = subprocess.run(
        [*launch, *FLAGS.split(), *flags.split()],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return re.findall(r"lm loss: (\S+)", done.stdout)


@pytest.mark.parametrize(("processes", "flags"), LAYOUTS.values(), ids=LAYOUTS)
def test_it_trains_and_prints_the_same_losses_twice(processes, flags):
    first = losses(processes, flags)
    assert len(first) == 4
    assert float(first[-1]) < float(first[0])
    assert losses(processes, flags) == first


def test_recording_it_changes_no_loss(tmp_path):
    record = [sys.executable, "-m", "bitstep", "-q", "record", "-o", str(tmp_path / "run")]
    assert losses(1, "", *record, "--level", "phase", "--") == losses(1, "")
    assert any((tmp_path / "run").iterdir())


def test_another_seed_prints_other_losses():
    assert losses(1, "--seed 1") != losses(1, "--seed 2")
