"""The settings in force in this process: threads, determinism, precision, Inductor, Triton.

They are asked of torch, and not of whoever set them. A module that the program has not imported is
not imported for this: `settings.inductor` is there once something was compiled, or is about to be.

>>> settings(torch)["dtype"]  # doctest: +SKIP
'float32'
"""

from __future__ import annotations

import sys
from typing import Any, Final

from bitstep.contract.software import found

INDUCTOR: Final = (
    "autotune_local_cache", "autotune_remote_cache", "batch_invariant", "coordinate_descent_tuning",
    "cpp.enable_floating_point_contract_flag", "cpp.enable_unsafe_math_opt_flag", "cpp.simdlen",
    "cpp.threads", "deterministic", "emulate_precision_casts", "epilogue_fusion", "fallback_random",
    "force_disable_caches", "freezing", "fx_graph_cache", "max_autotune", "max_autotune_gemm",
    "max_autotune_gemm_backends", "max_autotune_pointwise", "shape_padding",
    "triton.autotune_pointwise", "triton.codegen_upcast_to_fp32", "triton.cudagraphs",
    "triton.multi_kernel",
)  # fmt: skip
"""Options of torch._inductor.config that choose a kernel or how it rounds."""
TRITON: Final = ("autotuning.cache", "runtime.interpret", "language.default_fp_fusion")


def settings(torch: Any) -> dict[str, Any]:
    """Nested table for the manifest."""
    backends = torch.backends
    return {
        "threads": _threads(torch),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "hash_randomization": bool(sys.flags.hash_randomization),
        "optimize": sys.flags.optimize,
        "deterministic": {
            "algorithms": torch.are_deterministic_algorithms_enabled(),
            "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
            "debug_mode": torch.get_deterministic_debug_mode(),
            "fill_uninitialized_memory": torch.utils.deterministic.fill_uninitialized_memory,
            "cudnn": backends.cudnn.deterministic,
            "cudnn_benchmark": backends.cudnn.benchmark,
        },
        "precision": _precision(torch),
        "attention": {
            "flash": backends.cuda.flash_sdp_enabled(),
            "mem_efficient": backends.cuda.mem_efficient_sdp_enabled(),
            "math": backends.cuda.math_sdp_enabled(),
            "cudnn": backends.cuda.cudnn_sdp_enabled(),
        },
        "mkldnn": backends.mkldnn.enabled,
        **_compilers(),
    }


def _threads(torch: Any) -> dict[str, Any]:
    said = torch.__config__.parallel_info()
    return {
        "torch": torch.get_num_threads(),
        "interop": torch.get_num_interop_threads(),
        "omp": found(r"omp_get_max_threads\(\) : (\d+)", said),
        "mkl": found(r"mkl_get_max_threads\(\) : (\d+)", said),
    }


def _precision(torch: Any) -> dict[str, Any]:
    backends = torch.backends
    matmul = backends.cuda.matmul
    return {
        "float32_matmul": torch.get_float32_matmul_precision(),
        "cuda_matmul": matmul.fp32_precision,
        "cudnn_conv": backends.cudnn.conv.fp32_precision,
        "mkldnn_matmul": backends.mkldnn.matmul.fp32_precision,
        "bf16_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "fp16_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "fp16_accumulation": getattr(matmul, "allow_fp16_accumulation", None),
        "flush_denormal": _flushes_denormals(torch),
    }


def _flushes_denormals(torch: Any) -> bool:
    # torch has set_flush_denormal and no way to ask: 2^-140 is a denormal float32.
    tiny = torch.full((1,), 2.0**-100, dtype=torch.float32, device="cpu")
    return bool((tiny * 2.0**-40 == 0).item())


def _compilers() -> dict[str, Any]:
    tables: dict[str, Any] = {}
    if inductor := sys.modules.get("torch._inductor.config"):
        tables["inductor"] = {
            name.replace(".", "_"): value
            for name in INDUCTOR
            if isinstance(value := _at(inductor, name), bool | int | float | str | None)
        }
    if (knobs := sys.modules.get("triton.knobs")) is not None:  # never run here
        values = {name.replace(".", "_"): _at(knobs, name) for name in TRITON}
        tables["triton"] = {n: v for n, v in values.items() if isinstance(v, bool | int | str)}
    return tables


def _at(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner
