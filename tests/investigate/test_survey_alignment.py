"""That bits depend on where inputs lie, with kernels of MKL that do not need another CPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CASES = ("mv f32", "mv f64", "dot f32", "dot f64", "mm 300x257x1 f32", "mm 300x257x1 f64",
         "sdpa f32", "sdpa backward f32")  # fmt: skip
CODE = f"""
from bitstep.investigate.survey import measure
from bitstep.investigate.survey.cases import all_cases
measure.THREADS = (1,)
for name in (*{CASES}, "mm f32"):
    found = measure.measure(all_cases()[name])
    print(found.alignment)
print(found.rows)
"""
# What MKL asks for: with these answers it takes the kernels that it has for AMD's Zen.
NOT_INTEL = """
int mkl_serv_intel_cpu_true(void) { return 0; }
int mkl_serv_intel_cpu(void) { return 0; }
int mkl_serv_cpuiszen(void) { return 1; }
"""
ONE, TWO, FOUR = "a" * 16, "ab" * 8, "abcd" * 4
FREE = [ONE] * 9
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch has no MKL"),
]


def measured(**environment):
    """Letters of the cases, and of a product of matrices; at last its rows."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MKL_")}
    ran = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True,
        env=kept | environment,
    )  # fmt: skip
    return ran.stdout.split()


@pytest.fixture(scope="module")
def not_intel(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no compiler")
    folder = tmp_path_factory.mktemp("not_intel")
    source, library = folder / "cpu.c", folder / "cpu.so"
    source.write_text(NOT_INTEL)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library)}


def is_intel():
    told = Path("/proc/cpuinfo")
    return told.exists() and "GenuineIntel" in told.read_text()


@pytest.mark.skipif(not is_intel(), reason="MKL takes these kernels on a CPU of Intel only")
def test_mv_and_attention_depend_on_alignment_with_kernels_of_sse():
    old = {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
    assert measured(**old)[:-1] == [FOUR, ONE, ONE, ONE, FOUR, ONE, FOUR, FOUR, ONE]
    assert measured(**old, MKL_CBWR="AVX2")[:-1] == FREE
    assert measured(MKL_ENABLE_INSTRUCTIONS="AVX2")[:-1] == FREE


def test_dot_does_too_where_the_cpu_is_not_intels_and_one_setting_cures_all(not_intel):
    *letters, rows = measured(**not_intel)
    assert letters == [FOUR, TWO, "abac" * 4, TWO, FOUR, TWO, FOUR, FOUR, ONE]
    assert rows == "xxx=====", "products of 1, 2 and 3 rows"
    for setting in ("AVX2", "COMPATIBLE"):
        assert measured(**not_intel, MKL_CBWR=setting)[:-1] == FREE
