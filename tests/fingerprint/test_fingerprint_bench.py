"""The bench returns rows. How fast is not a matter for tests."""

import sys

import pytest
import torch

from bitstep.bench.fingerprint import bench_fingerprint
from bitstep.errors import UsageError


def test_rows_of_every_subject_and_dtype():
    threads = torch.get_num_threads()
    rows = bench_fingerprint(megabytes=1, repeats=1)
    assert torch.get_num_threads() == threads
    assert {(row.dtype, row.nbytes) for row in rows} == {
        (dtype, nbytes)
        for dtype in ("float32", "bfloat16", "float8_e4m3fn")
        for nbytes in (1 << 20, 4096)
    }
    subjects = [row.subject for row in rows if row.dtype == "float32"][:4]
    assert sorted(subjects) == ["copy", "fingerprint", "torch.hash_tensor", "xxh3_64"]
    assert all(row.gb_per_s > 0 and row.microseconds > 0 and row.target for row in rows)
    assert all(row.ratio == 1 for row in rows if row.subject == "xxh3_64")


def test_without_xxhash_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(UsageError, match=r"pip install 'bitstep\[bench\]'"):
        bench_fingerprint(megabytes=1, repeats=1)


def test_half_a_target_is_refused(monkeypatch):
    monkeypatch.setenv("NUMBA_CPU_NAME", "haswell")
    monkeypatch.delenv("NUMBA_CPU_FEATURES", raising=False)
    with pytest.raises(UsageError, match="set both"):
        bench_fingerprint(megabytes=1, repeats=1)


def test_nothing_to_measure_is_refused():
    with pytest.raises(UsageError, match="megabytes 0 and repeats 1"):
        bench_fingerprint(megabytes=0, repeats=1)
