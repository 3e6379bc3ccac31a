"""That bits depend on where inputs lie, with kernels of MKL that do not need another CPU."""

import subprocess
import sys

import pytest
import torch

CODE = """
from bitstep.investigate.survey import measure
from bitstep.investigate.survey.cases import all_cases
measure.THREADS = (1,)
print(*(measure.measure(all_cases()[name]).alignment for name in ("mv f32", "mv f64", "dot f32")))
"""


def alignments(monkeypatch, **environment):
    for name in ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    return ran.stdout.split()


@pytest.mark.long
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch was built without MKL")
def test_mv_depends_on_alignment_with_other_kernels_and_one_setting_cures_it(monkeypatch):
    old = {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
    assert alignments(monkeypatch, **old) == ["abcd" * 4, "a" * 16, "a" * 16]
    assert alignments(monkeypatch, **old, MKL_CBWR="AVX2") == ["a" * 16] * 3
