"""Traces are read where torch is not installed, and reading them is light."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCK = """
import importlib.abc, sys
class NoTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numba", "xxhash", "pandas"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, NoTorch())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("room", ["trace", "trace.run", "report"])
def test_the_room_imports_without_torch(room: str) -> None:
    child = run(f"import bitstep.{room}\nassert 'torch' not in sys.modules")
    assert (child.returncode, child.stderr) == (0, "")


@pytest.mark.parametrize("package", ["torch", "numba"])
def test_the_test_above_can_fail(package: str) -> None:
    child = run(f"import bitstep.trace\nimport {package}")
    assert child.returncode == 1
    assert f"{package} is blocked" in child.stderr
