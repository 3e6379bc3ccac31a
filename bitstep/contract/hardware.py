"""What this process runs on: the CPU and its instructions, GPUs, their driver.

`torch` is handed in; nothing is asked of a GPU that the process has not woken, and no process is
started: what Linux says in /proc is read.

>>> hardware(torch, uses_gpu=False)["machine"]  # doctest: +SKIP
'x86_64'
"""

from __future__ import annotations

import functools
import os
import platform
import re
from typing import Any, Final

FLAGS: Final = (
    "amx", "asimd", "avx", "bf16", "f16c", "fma", "i8mm", "sse4", "sve", "vaes", "vpclmul",
)  # fmt: skip
"""Beginnings of the CPU flags by which kernels are chosen."""
_NAMES: Final = (
    "vendor_id", "cpu family", "model", "CPU implementer", "CPU part", "model name",
)  # fmt: skip
_BYTES: Final = 1 << 13
"""Of /proc/cpuinfo: the first processor. The kernel makes the text as it is read, and on a machine
of hundreds of processors all of it takes long."""


def hardware(torch: Any, uses_gpu: bool) -> dict[str, Any]:
    """Nested table for the manifest."""
    cpu = _cpuinfo()
    flags = cpu.get("flags", cpu.get("Features", "")).split()
    devices = [torch.cuda.get_device_properties(at) for at in _range(torch, uses_gpu)]
    return {
        "machine": platform.machine(),
        "cpu": {
            "model": " ".join(cpu[name] for name in _NAMES if name in cpu) or platform.processor(),
            "cache": cpu.get("cache size"),
            "flags": {flag: True for flag in flags if flag.startswith(FLAGS)},
            "capability": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
        },
        # Kinds, not devices: how many there are is the physical layout.
        "gpu": sorted({device.name for device in devices}),
        "gpus": {
            "count": len(devices),
            **{str(at): _gpu(device) for at, device in enumerate(devices)},
        },
    }


def _range(torch: Any, uses_gpu: bool) -> range:
    return range(torch.cuda.device_count() if uses_gpu else 0)


def _gpu(device: Any) -> dict[str, Any]:
    # Never run on a GPU so far.
    return {
        "capability": f"{device.major}.{device.minor}",
        "multiprocessors": device.multi_processor_count,
        "memory": device.total_memory,
        "uuid": str(getattr(device, "uuid", "")),
    }


@functools.cache
def _cpuinfo() -> dict[str, str]:
    """The first processor that Linux lists; empty on other systems."""
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            first = file.read(_BYTES).decode("utf-8", "replace").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def driver() -> str | None:
    """Version of the NVIDIA driver, as its module says; None without one."""
    try:
        with open("/proc/driver/nvidia/version", "rb") as file:
            found = re.search(rb"Kernel Module\s+(?:for \S+\s+)?(\d[\w.]*)", file.read(4096))
    except OSError:
        return None
    return found[1].decode() if found else "unknown"
