"""Collect the manifest of this attempt from the live process, after its settings are applied.

1. What the caller knows: recipe, data, layout, command. A program that is not ours has no recipe,
   and says itself what its source is.
2. What this process runs on, with and under: hardware, software, settings in force.
3. Environment variables that bear on numerics, by an allow-list; no other value is looked at.

Importing this module does not import torch; calling `collect` does.

>>> manifest = collect({"run": {"seed": 1}}, command=["bitstep"], corpus_digest="", order_digest="",
...                    layout={"logical": {"ranks": 8}, "physical": {"processes": 1}})
>>> manifest.keys["recipe.run.seed"], manifest.keys["layout.logical.ranks"]
(1, 8)
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import os
import platform
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from bitstep.contract.manifest import Manifest
from bitstep.contract.program import commit, is_secret, source_digest, without_secrets
from bitstep.errors import ContractError
from bitstep.version import __version__

ENVIRONMENT = (
    "ATEN_CPU_CAPABILITY", "CAUSAL_CONV1D_DETERMINISTIC", "CUBLAS_*", "CUBLASLT_*", "CUDA_*",
    "CUDNN_*", "DNNL_*", "GOMP_*", "KMP_*", "MAMBA_DETERMINISTIC", "MKL_*", "NCCL_*",
    "NVIDIA_TF32_OVERRIDE", "NVTE_*", "OMP_*", "ONEDNN_*", "PYTHONHASHSEED", "TORCHINDUCTOR_*",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TRITON_CACHE_AUTOTUNING",
)  # fmt: skip
"""Names of the environment variables that are kept."""
PACKAGES = ("numpy", "numba", "llvmlite", "pyarrow", "triton")
"""Of which the installed version is kept, or null."""
FLAGS = ("amx", "asimd", "avx", "bf16", "f16c", "fma", "i8mm", "sse4", "sve", "vaes", "vpclmul")
"""Beginnings of the CPU flags by which kernels are chosen."""


def collect(
    recipe: Mapping[str, Any] | None,
    *,
    command: Sequence[str],
    corpus_digest: str | None = None,
    order_digest: str | None = None,
    layout: Mapping[str, Any],
    declared: Sequence[str] = (),
    source: Mapping[str, Any] | None = None,
    wakes_gpu: bool = True,
) -> Manifest:
    """Everything that two attempts are compared by.

    `recipe` is the resolved recipe, nested or dotted. `layout` has a table "logical" and a table
    "physical". `declared` are the recipe keys that differ from the parent's by intent, as --set
    names them. `source` replaces the commit and the digest of our own code. A GPU that the process
    has not used is left asleep without `wakes_gpu`: to ask for its name would take its memory.
    Raises ContractError for a value that JSON does not hold.
    """
    import torch

    uses_gpu = wakes_gpu or _gpu_is_awake(torch)
    data = {"digest": corpus_digest, "order": order_digest}
    table = {
        "hardware": _hardware(torch, uses_gpu),
        "software": _software(torch, uses_gpu),
        "settings": _settings(torch),
        "environment": _environment(os.environ),
        "recipe": recipe or {},
        "data": {name: digest for name, digest in data.items() if digest is not None},
        "layout": layout,
        "program": _program(command, source),
    }
    keys: dict[str, Any] = {}
    for key, value in _flat(table, ""):
        if key in keys:
            raise ContractError(f"manifest key {key} stands twice: rename one of them")
        keys[key] = value
    return Manifest(dict(sorted(keys.items())), tuple(f"recipe.{name}" for name in declared))


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _plain(value, f"{prefix}{name}")


def _plain(value: Any, key: str) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(inner, key) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)  # JSON has no word for inf and nan
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ContractError(f"manifest key {key} = {value!r}: give text, a number, a list or a table")


def _gpu_is_awake(torch: Any) -> bool:
    return bool(torch.cuda.is_initialized())


def _hardware(torch: Any, uses_gpu: bool) -> dict[str, Any]:
    cpu = _cpuinfo()
    flags = cpu.get("flags", cpu.get("Features", "")).split()
    known = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part", "model name")
    devices = range(torch.cuda.device_count() if uses_gpu else 0)
    gpus = {torch.cuda.get_device_name(device) for device in devices}
    return {
        "machine": platform.machine(),
        "cpu": {
            "model": " ".join(cpu[name] for name in known if name in cpu) or platform.processor(),
            "cache": cpu.get("cache size"),
            "flags": {flag: True for flag in flags if flag.startswith(FLAGS)},
            "capability": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
        },
        # Kinds, not devices: how many there are is the physical layout.
        "gpu": sorted(gpus),
    }


def _cpuinfo() -> dict[str, str]:
    """The first processor that Linux lists; empty on other systems."""
    try:
        with open("/proc/cpuinfo") as file:
            first = file.read(1 << 16).split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _software(torch: Any, uses_gpu: bool) -> dict[str, Any]:
    config = torch.__config__.show()
    # Which instructions this CPU has is a key of its own.
    build = "\n".join(line for line in config.splitlines() if "CPU capability usage" not in line)
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libc": " ".join(platform.libc_ver()),
        "bitstep": __version__,
        "torch": {
            "version": str(torch.__version__),
            "git": torch.version.git_version,
            "build": hashlib.sha256(build.encode()).hexdigest(),
        },
        "mkl": _found(r"Math Kernel Library Version (\S+ Build \d+)", config),
        "onednn": _found(r"MKL-DNN v(\S+ \(Git Hash \w+\))", config),
        **{name: _version(name) for name in PACKAGES},
        **_cuda_software(torch, uses_gpu),
    }


def _cuda_software(torch: Any, uses_gpu: bool) -> dict[str, Any]:
    # Untested on a GPU so far.
    if not (uses_gpu and torch.cuda.is_available()):
        return {"cuda": torch.version.cuda, "cudnn": None, "nccl": None}
    return {
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def _settings(torch: Any) -> dict[str, Any]:
    threads = torch.__config__.parallel_info()
    backends = torch.backends
    return {
        "threads": {
            "torch": torch.get_num_threads(),
            "interop": torch.get_num_interop_threads(),
            "omp": _found(r"omp_get_max_threads\(\) : (\d+)", threads),
            "mkl": _found(r"mkl_get_max_threads\(\) : (\d+)", threads),
        },
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic": {
            "algorithms": torch.are_deterministic_algorithms_enabled(),
            "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
            "debug_mode": torch.get_deterministic_debug_mode(),
            "fill_uninitialized_memory": torch.utils.deterministic.fill_uninitialized_memory,
            "cudnn": backends.cudnn.deterministic,
            "cudnn_benchmark": backends.cudnn.benchmark,
        },
        "precision": {
            "float32_matmul": torch.get_float32_matmul_precision(),
            "cuda_matmul": backends.cuda.matmul.fp32_precision,
            "cudnn_conv": backends.cudnn.conv.fp32_precision,
            "mkldnn_matmul": backends.mkldnn.matmul.fp32_precision,
            "bf16_reduction": backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
            "fp16_reduction": backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
            "flush_denormal": _flushes_denormals(torch),
        },
        "attention": {
            "flash": backends.cuda.flash_sdp_enabled(),
            "mem_efficient": backends.cuda.mem_efficient_sdp_enabled(),
            "math": backends.cuda.math_sdp_enabled(),
            "cudnn": backends.cuda.cudnn_sdp_enabled(),
        },
        "mkldnn": backends.mkldnn.enabled,
    }


def _flushes_denormals(torch: Any) -> bool:
    # torch has set_flush_denormal and no way to ask: 2^-140 is a denormal float32.
    tiny = torch.full((1,), 2.0**-100, dtype=torch.float32, device="cpu")
    return bool((tiny * 2.0**-40 == 0).item())


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: variables[name]
        for name in sorted(variables)
        if any(fnmatchcase(name, pattern) for pattern in ENVIRONMENT)
        and re.fullmatch(r"\w+", name, re.ASCII)
        and not is_secret(name)
    }


def _program(command: Sequence[str], source: Mapping[str, Any] | None) -> dict[str, Any]:
    ours = {"commit": commit(), "source": source_digest()} if source is None else source
    return {
        "command": without_secrets(command),
        **ours,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _found(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match[1] if match else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
