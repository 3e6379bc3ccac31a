"""Each rule that is marked as measured, with and without it: other bits on this machine.

Variables are read once, so each value has a process of its own. Every pair differs in one variable.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from bitstep.contract.rules import RULES, VARIABLES

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core sums in one order"),
]

PROGRAM = Path(__file__).with_name("rules_effects.py")
ROOT = PROGRAM.parents[2]
NAMES = {rule.name for rule in VARIABLES}
MANY = str(2 * (os.cpu_count() or 1))
TWO = {"OMP_NUM_THREADS": "2"}
FIXED = {"OMP_NUM_THREADS": MANY, "OMP_DYNAMIC": "FALSE", "MKL_DYNAMIC": "FALSE"}
"""More threads than cores, and no library may take fewer."""

PAIRS: dict[str, tuple[dict[str, str], str | None, str]] = {
    # variable: (environment with it, its other value, operation that differs)
    "OMP_NUM_THREADS": (TWO, "1", "sum"),
    "OMP_DYNAMIC": (FIXED, "TRUE", "sum"),
    "MKL_NUM_THREADS": ({**TWO, "MKL_NUM_THREADS": "2"}, "1", "long mm"),
    "MKL_DYNAMIC": (FIXED, "TRUE", "long mm"),
    "MKL_CBWR": ({**TWO, "MKL_CBWR": "COMPATIBLE"}, None, "mm"),
    "ATEN_CPU_CAPABILITY": ({**TWO, "ATEN_CPU_CAPABILITY": "default"}, None, "randn"),
    "ONEDNN_MAX_CPU_ISA": ({**TWO, "ONEDNN_MAX_CPU_ISA": "AVX2"}, None, "bf16 mm"),
    "DNNL_MAX_CPU_ISA": ({**TWO, "DNNL_MAX_CPU_ISA": "AVX2"}, None, "bf16 mm"),
}
SETTINGS = (
    "torch.use_deterministic_algorithms",
    "torch.utils.deterministic.fill_uninitialized_memory",
    "torch.set_float32_matmul_precision",
    "torch.backends.mkldnn.conv.fp32_precision",
    "torch.get_num_threads",
)
NEED_BF16 = (
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "torch.set_float32_matmul_precision",
    "torch.backends.mkldnn.conv.fp32_precision",
)


@cache
def computed(words: str, environment: tuple[tuple[str, str], ...]) -> dict:
    base = {name: value for name, value in os.environ.items() if name not in NAMES}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), words],
        env={**base, **dict(environment), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def variables(environment: dict[str, str]) -> dict:
    return computed("variables", tuple(sorted(environment.items())))


def needs_bf16(name: str) -> None:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if name in NEED_BF16 and "avx512_bf16" not in flags:
        pytest.skip("this CPU has no instructions for bf16")


def test_every_measured_rule_has_its_effect_shown_here():
    measured = {rule.name for rule in RULES if rule.mark == "measured"}
    assert measured == {*PAIRS, *SETTINGS, "PYTHONHASHSEED"}


@pytest.mark.parametrize("name", PAIRS)
def test_another_value_of_a_variable_has_other_bits(name):
    needs_bf16(name)
    environment, other, operation = PAIRS[name]
    others = {**environment, name: other} if other else dict(environment)
    if other is None:
        del others[name]
    assert variables(environment)[operation] != variables(others)[operation]


def test_the_same_variables_have_the_same_bits():
    first = variables(TWO)
    computed.cache_clear()
    assert variables(TWO) == first


@pytest.mark.parametrize("name", SETTINGS)
def test_another_value_of_a_setting_has_other_bits(name):
    needs_bf16(name)
    with_rule, without = computed("settings", ())[name]
    assert with_rule != without


def test_scattered_sums_vary_by_themselves_without_the_strict_mode():
    with_rule, without = computed("settings", ())["torch.use_deterministic_algorithms"]
    assert (with_rule, without) == ("1", "2")


ORDER = """
weights = {"embedding": 1e8, "attention": 0.3, "norm": -1e8, "head": 0.7, "mlp": 1e-9}
print(sum(weights[name] for name in set(weights)).hex())
"""


def sums(seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ORDER],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout


def test_another_seed_of_hashes_sums_in_another_order():
    assert len({sums(str(seed)) for seed in range(8)}) > 1
    assert sums("0") == sums("0")
