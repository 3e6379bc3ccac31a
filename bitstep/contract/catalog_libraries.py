"""Rows of what lies beside torch's own operations: collectives, and kernels of other libraries.

Many of these are called past torch's dispatcher: then a trace has no row with such a name, and they
are looked up by the name of the library, as "flash_attn._flash_attn_backward".

None was measured by us. M#n, TE#n, NCCL#n, DeepEP#n are threads of NVIDIA/Megatron-LM,
NVIDIA/TransformerEngine, NVIDIA/nccl and deepseek-ai/DeepEP; files are of Megatron d98e8a64 and
TransformerEngine d0067d0d.

>>> sorted({row.op.partition(".")[0] for row in LIBRARIES})[:3]
['DaoAILab', '_c10d_functional', 'c10d']
"""

from __future__ import annotations

from typing import Any, Final

from bitstep.contract.catalog_row import Mark, Mechanism, Row

NCCL: Final = "NCCL_ALGO=Ring before the communicator is made, the same nodes and versions"
TE: Final = "NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 before the import"
AUTOTUNE: Final = "TRITON_CACHE_AUTOTUNING=1 with TRITON_CACHE_DIR shared by all ranks"


def _row(op: str, mechanism: Mechanism, evidence: str, mark: Mark, **more: Any) -> Row:
    return Row(
        op=op, device="cuda", varies="run to run", mechanism=mechanism, evidence=evidence,
        mark=mark, **more,
    )  # fmt: skip


_SUMS: Final = ("c10d.*reduce*", "_c10d_functional.*reduce*")

_COLLECTIVES: Final = (
    *(
        _row(
            op, "algorithm of a library",
            "Megatron determinism.py:48 pins the algorithm, not the physical ring; NCCL#2360, "
            "NCCL#1497", "source only", setting=NCCL,
            when="on other nodes, in another order of ranks, or where NCCL picks another algorithm",
        )
        for op in _SUMS
    ),
    *(
        Row(
            op=op, device="cpu", varies="shape", mechanism="split reduction",
            when="gloo, four ranks or more: a bucket of another size is summed in another order",
            alternative="the same buckets and the same number of ranks in all runs",
            evidence="bitstep measures the order of each group as it starts: docs/summation.md",
            mark="source only",
        )
        for op in _SUMS
    ),
)  # fmt: skip

_KERNELS: Final = (
    _row(
        "flash_attn._flash_attn*_backward", "atomics", "flash-attention#1893; TE takes it from "
        "2.4.1 on (dot_product_attention/utils.py:1504-1565)", "public report",
        setting="deterministic=True of its functions",
    ),
    _row(
        "flash_attn_3.*bwd*", "atomics", "TE: no FlashAttention 3 with a head of 256 or more in "
        "training (dot_product_attention/utils.py:1504-1565)", "source only",
        setting="deterministic=True of its functions",
    ),
    _row(
        "transformer_engine.*attn*", "atomics", "dot_product_attention/utils.py:1504-1565",
        "source only", setting=TE,
        when="fused attention needs sm90, cuDNN 8.9.5, for FP8 9.19; none on sm120",
    ),
    _row(
        "transformer_engine.*fused_moe_aux_loss*", "atomics",
        "fused_router/fused_moe_aux_loss.cu:69, 173; M#6967: 7 of 7 repeats differed",
        "public report", alternative="moe_router_aux_loss_fusion off",
    ),
    _row(
        "transformer_engine.*grouped*dbias*", "atomics", "grouped_dbias_dscales.py:16-40",
        "source only", setting=TE, when="it then raises",
    ),
    _row(
        "transformer_engine.*mhc*", "split reduction", "pytorch/triton/mhc.py:29", "source only",
        setting=TE, when="the variable is read at import",
    ),
    _row(
        "transformer_engine.*moe_unpermute*", "atomics",
        "Megatron moe_utils.py:544-556: has no deterministic path, and is not refused",
        "source only", alternative="the unfused unpermute: index_add_ under the flag",
    ),
    _row(
        "transformer_engine.*gemm*", "split reduction",
        "M#7262: a weight gradient with FP4 operands and a float32 result; no variable covers it",
        "public report", alternative="a bfloat16 result",
    ),
    _row(
        "transformer_engine.*quantize*", "algorithm of a library",
        "quantizer.cpp:2604-2627 draws from the default CUDA generator", "source only",
        when="NVFP4 with stochastic rounding, where the generator is not restored",
        alternative="restore the CUDA generator, or no stochastic rounding",
    ),
    _row(
        "deep_ep.*", "atomics", "DeepEP#689, DeepEP#753", "public report",
        when="tokens arrive in the order in which they come",
    ),
    _row(
        "DaoAILab._causal_conv1d_bwd*", "atomics",
        "Megatron ssm/causal_conv1d.py:34-59: 1.6.0 or later with a workspace", "source only",
        setting="CAUSAL_CONV1D_DETERMINISTIC=1 before the first use",
    ),
    _row(
        "mamba_ssm.*", "autotune", "Megatron ssm/ops/common/determinism.py:27-123",
        "source only", setting="MAMBA_DETERMINISTIC=1 before the first use",
        when="timed autotune, and a workspace that nobody cleared",
    ),
    _row(
        "fla.*", "autotune", "Megatron gated_delta_net/gdn.py:69, 117; M#6613, M#6608",
        "source only", alternative="torch's own chunk rule and conv1d, as deterministic mode does",
    ),
    _row(
        "triton.*", "autotune", "M#6966: ranks disagreed in 13 of 22 entries; triton#9368",
        "public report", setting=AUTOTUNE, when="an autotuned kernel picks its configuration by "
        "time",
    ),
)  # fmt: skip

LIBRARIES: Final[tuple[Row, ...]] = (*_COLLECTIVES, *_KERNELS)
