"""What a setting of MKL moves depends on the kernels that it takes without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CASES = ("exp f32", "log f32", "mv f32", "mm 257x129x67 f32", "softmax f32", "mm bf16")
CODE = f"""
from bitstep.investigate.survey.cases import all_cases
from bitstep.investigate.survey.measure import plain
print(*(plain(all_cases()[name]).bits for name in {CASES}))
"""
CPU = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
AVX2 = {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not torch.backends.mkl.is_available() or "GenuineIntel" not in CPU or "avx2" not in CPU,
        reason="MKL looks at this variable on a CPU of Intel only",
    ),
]


def bits(**environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MKL_")}
    ran = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True,
        env=kept | environment,
    )  # fmt: skip
    return dict(zip(CASES, ran.stdout.split(), strict=True))


@pytest.fixture(scope="module")
def before():
    return bits(**AVX2)


@pytest.mark.parametrize(
    ("setting", "moved"),
    [
        ("AVX2", []),
        ("AVX2,STRICT", ["mm 257x129x67 f32"]),
        ("COMPATIBLE", ["exp f32", "log f32", "mv f32", "mm 257x129x67 f32"]),
    ],
)
def test_from_kernels_of_avx2_a_setting_moves(setting, moved, before):
    after = bits(**AVX2, MKL_CBWR=setting)
    assert [name for name in CASES if after[name] != before[name]] == moved


def test_the_setting_gives_what_a_cpu_with_no_more_than_avx2_gives(before):
    assert bits(MKL_CBWR="AVX2") == before
