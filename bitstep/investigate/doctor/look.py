"""What a fresh process finds on this machine: the part of the doctor that such a process runs.

1. `look` says what is there: processor, GPUs, PyTorch, threads, allocators, versions.
2. Each rule is asked for its standing, as a program that starts here would find it.

Run as a module it prints that as one line of JSON. Where PyTorch is missing it says so.

>>> look()["cores"] == os.cpu_count()
True
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from typing import Any, Final, cast

from bitstep.contract.rules import SETTINGS, VARIABLES
from bitstep.contract.standing import standings
from bitstep.observe.standings import as_data

PACKAGES: Final = (
    "torch", "numpy", "triton", "torchao", "torchdata", "transformers", "megatron-core",
    "transformer-engine", "flash-attn", "causal-conv1d", "mamba-ssm", "deepspeed",
)  # fmt: skip
_ALLOCATORS: Final = ("jemalloc", "tcmalloc", "mimalloc")


def look() -> dict[str, Any]:
    """All of it, as plain data."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable cores": len(os.sched_getaffinity(0)),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "allocator": [name for name in _ALLOCATORS if name in os.environ.get("LD_PRELOAD", "")],
        "torch": _torch(),
        # Variables as a process finds them that is still to be started, settings as torch has them.
        "rules": as_data([*standings(VARIABLES, None, dict(os.environ)), *standings(SETTINGS)]),
    }


def _torch() -> dict[str, Any]:
    try:
        import torch as module
    except Exception as error:  # Also one that is there and cannot be loaded.
        return {"problem": " ".join(f"{type(error).__name__}: {error}".split())}
    gpus: list[str] = []
    torch = cast("Any", module)  # parts of it have no types
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    return {
        "version": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "mkl": torch.backends.mkl.is_available(),
        "threads": torch.get_num_threads(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if gpus else None,
        "gpus": gpus,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            lines = file.read(1 << 16).splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


if __name__ == "__main__":
    print(json.dumps(look()))
