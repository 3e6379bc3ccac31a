"""What this process runs with: Python, torch's build and its libraries, what it has imported.

>>> software(torch, uses_gpu=False)["torch"]["version"]  # doctest: +SKIP
'2.13.0+cpu'
"""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from typing import Any

from bitstep.contract.hardware import driver
from bitstep.contract.imported import distributions
from bitstep.version import __version__


def software(torch: Any, uses_gpu: bool) -> dict[str, Any]:
    """Nested table for the manifest; a library that is not there is null."""
    config = torch.__config__.show()
    # Which instructions this CPU has is a key of its own.
    build = "\n".join(line for line in config.splitlines() if "CPU capability usage" not in line)
    imported = distributions(sys.modules, sys.path)
    for own in ("bitstep", "torch"):  # whose versions are keys of their own
        imported.pop(own, None)
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libc": " ".join(platform.libc_ver()),
        "kernel": platform.release(),
        "bitstep": __version__,
        "torch": {
            "version": str(torch.__version__),
            "git": torch.version.git_version,
            "build": hashlib.sha256(build.encode()).hexdigest(),
            "cxx": found(r"^  - ((?:GCC|clang|MSVC|LLVM)\b.*)$", config),
        },
        "blas": found(r"BLAS_INFO=(\w+)", config),
        "mkl": found(r"Math Kernel Library Version (\S+ Build \d+)", config),
        "onednn": found(r"MKL-DNN v(\S+ \(Git Hash \w+\))", config),
        "openmp": found(r"OpenMP (\d+)", config),
        "distributions": imported,
        **_cuda(torch, uses_gpu),
    }


def _cuda(torch: Any, uses_gpu: bool) -> dict[str, Any]:
    table: dict[str, Any] = {"cuda": torch.version.cuda, "cudnn": None, "nccl": None}
    if uses_gpu and torch.cuda.is_available():  # never run on a GPU so far
        table["cudnn"] = torch.backends.cudnn.version()
        table["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    if version := driver():
        table["driver"] = version
    return table


def found(pattern: str, text: str) -> str | None:
    """The first group of the first match."""
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else None
