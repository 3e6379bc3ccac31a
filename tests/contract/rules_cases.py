"""For every rule a value that breaks it and, where the rule takes any, one that keeps it."""

from __future__ import annotations

from bitstep.contract.rules import RULES, Rule

BROKEN = {
    "PYTHONHASHSEED": "random",
    "OMP_NUM_THREADS": "all",
    "OMP_DYNAMIC": "TRUE",
    "MKL_NUM_THREADS": "-1",
    "MKL_DYNAMIC": "TRUE",
    "MKL_CBWR": "FASTEST",
    "ATEN_CPU_CAPABILITY": "avx3",
    "ONEDNN_MAX_CPU_ISA": "AVX3",
    "DNNL_MAX_CPU_ISA": "AVX3",
    "TORCHINDUCTOR_DETERMINISTIC": "0",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
    "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE": "1",
    "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM": "1",
    "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:2",
    "NVIDIA_TF32_OVERRIDE": "1",
    "CUDA_DEVICE_MAX_CONNECTIONS": "many",
    "NCCL_ALGO": "Ring,Tree",
    "NCCL_PROTO": "Fast",
    "NCCL_MIN_NCHANNELS": "few",
    "NCCL_MAX_NCHANNELS": "many",
    "NCCL_NVLS_ENABLE": "on",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "1",
    "FLASH_ATTENTION_DETERMINISTIC": "0",
    "MAMBA_DETERMINISTIC": "0",
    "CAUSAL_CONV1D_DETERMINISTIC": "false",
    "TRITON_CACHE_AUTOTUNING": "2",
    "TRITON_CACHE_DIR": "",
    "torch.use_deterministic_algorithms": "warn_only",
    "torch.utils.deterministic.fill_uninitialized_memory": "True",
    "torch.set_float32_matmul_precision": "medium",
    "torch.backends.fp32_precision": "tf32",
    "torch.backends.mkldnn.conv.fp32_precision": "bf16",
    "torch.backends.mkldnn.rnn.fp32_precision": "bf16",
    "torch.get_num_threads": "3",
    "torch._inductor.config.deterministic": "False",
    "torch.backends.cudnn.deterministic": "False",
    "torch.backends.cudnn.benchmark": "True",
    "torch.backends.cudnn.allow_tf32": "True",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": "True",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": "True",
    "torch.backends.cuda.matmul.allow_fp16_accumulation": "True",
}
"""Refused where somebody set it; what torch has by itself is filled, and refused as drift."""

EXAMPLES = {"N": "1", "?*": "/shared/triton", "1*": "1", "sve*": "sve256"}
"""A value for each pattern; others are values themselves."""


def kept(rule: Rule) -> str:
    """A value that keeps the rule."""
    word = rule.fill or rule.accepts[0]
    return EXAMPLES.get(word, word)


def kept_environment() -> dict[str, str]:
    """Every variable of a rule, at a value that keeps it."""
    return {rule.name: kept(rule) for rule in RULES if rule.kind == "variable"}
