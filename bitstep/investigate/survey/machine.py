"""On what and with what a survey is made: enough to explain bits, nothing that names a host.

>>> sorted(versions())[:2]
['glibc', 'mkl']
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import numpy
import torch

_FLAGS = ("avx", "amx", "fma", "sve", "asimd", "bf16")


def machine(device: str) -> dict[str, str]:
    """The processor, and the accelerator if that is measured."""
    info = _cpuinfo()
    flags = info.get("flags", info.get("Features", "")).split()
    known = ("vendor_id", "model name", "cpu family", "model", "stepping", "CPU part")
    found = {name: info[name] for name in known if name in info}
    found["flags"] = " ".join(sorted({flag for flag in flags if flag.startswith(_FLAGS)}))[:400]
    found["capability"] = torch.backends.cpu.get_cpu_capability()
    found["cpus"] = str(len(os.sched_getaffinity(0)))
    found["architecture"] = platform.machine()
    if device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
        found["compute"] = ".".join(map(str, torch.cuda.get_device_capability()))
    return found


def versions() -> dict[str, str]:
    """Of what decides bits, as far as it says."""
    said = torch.__config__.show()
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "glibc": platform.libc_ver()[1],
    }
    for name, pattern in (
        ("mkl", r"Math Kernel Library Version (\S+)"),
        ("onednn", r"MKL-DNN v(\S+)"),
        ("openmp", r"OpenMP (\d+)"),
    ):
        if match := re.search(pattern, said):
            found[name] = match[1]
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return found


def _cpuinfo() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
