"""Rules about environment variables that are read on a GPU only.

No statement here was measured by us: each has its source. M#n and NCCL#n are threads of
NVIDIA/Megatron-LM and NVIDIA/nccl.

>>> next(rule for rule in GPU if rule.name == "NCCL_ALGO").fill
'Ring'
"""

from __future__ import annotations

from typing import Final

from bitstep.contract.rule import NUMBER, OFF, PIN, Rule

GPU: Final[tuple[Rule, ...]] = (
    Rule(
        name="CUBLAS_WORKSPACE_CONFIG",
        kind="variable",
        library="cuBLAS",
        accepts=(":4096:8", ":16:8"),
        fill=":4096:8",
        why="with another workspace cuBLAS picks kernels whose sums vary between streams",
        read=("CUDA in use",),
        cost="24 MiB of GPU memory; :16:8 takes less and is slower",
        evidence="documentation of cuBLAS; Megatron main training/determinism.py:62",
        mark="source only",
    ),
    Rule(
        name="NVIDIA_TF32_OVERRIDE",
        kind="variable",
        library="CUDA",
        accepts=OFF,
        fill=None,
        why="1 rounds what float32 products read to TF32, whatever torch says",
        read=("CUDA in use",),
        cost="",
        evidence="documentation of CUDA libraries, NVIDIA_TF32_OVERRIDE",
        mark="source only",
    ),
    Rule(
        name="CUDA_DEVICE_MAX_CONNECTIONS",
        kind="variable",
        library="CUDA",
        accepts=(NUMBER,),
        fill=None,
        why="it orders kernels of several streams; " + PIN,
        read=("CUDA in use",),
        cost="",
        evidence="M#7419 (open)",
        mark="public report",
    ),
    Rule(
        name="NCCL_ALGO",
        kind="variable",
        library="NCCL",
        accepts=("Ring", "CollnetDirect", "CollnetChain", "^NVLS"),
        listed=True,
        fill="Ring",
        why="it decides the order of sums between GPUs, and nobody can pin that of a tree",
        read=("process group",),
        cost="slower than trees for small messages on many nodes",
        evidence="Megatron main training/determinism.py:48; ^NVLS keeps some risk (NCCL#2360)",
        mark="source only",
    ),
    Rule(
        name="NCCL_PROTO",
        kind="variable",
        library="NCCL",
        accepts=("LL", "LL128", "Simple"),
        listed=True,
        fill=None,
        why="it cuts messages into other pieces; " + PIN,
        read=("process group",),
        cost="",
        evidence="M#7419 (open)",
        mark="public report",
    ),
    *(
        Rule(
            name=name,
            kind="variable",
            library="NCCL",
            accepts=(NUMBER,),
            fill=None,
            why=f"{why}; {PIN}",
            read=("process group",),
            cost="",
            evidence="documentation of NCCL",
            mark="source only",
        )
        for name, why in (
            ("NCCL_MIN_NCHANNELS", "channels are rings, between which a message is cut"),
            ("NCCL_MAX_NCHANNELS", "channels are rings, between which a message is cut"),
            ("NCCL_NVLS_ENABLE", "switches add in an order of theirs"),
        )
    ),
    Rule(
        name="NVTE_ALLOW_NONDETERMINISTIC_ALGO",
        kind="variable",
        library="Transformer Engine",
        accepts=("0",),
        fill="0",
        why="attention backward adds by atomics; it does not reach products of matrices",
        read=("import transformer_engine",),
        cost="no FlashAttention 3 at head sizes of 256 and more, and other limits of its filter",
        evidence="Transformer Engine pytorch/triton/mhc.py:29 (frozen at import), "
        "attention/dot_product_attention/utils.py:1504",
        mark="source only",
    ),
    Rule(
        name="FLASH_ATTENTION_DETERMINISTIC",
        kind="variable",
        library="Transformers",
        accepts=("1",),
        fill="1",
        why="backward of flash-attn, as Transformers calls it, adds by atomics",
        read=("CUDA in use",),
        cost="slower backward, and more memory",
        evidence="transformers modeling_flash_attention_utils.py:696",
        mark="source only",
    ),
    Rule(
        name="MAMBA_DETERMINISTIC",
        kind="variable",
        library="Mamba",
        accepts=("1*",),
        fill="1",
        why="else workspaces are summed by atomics, and kernels chosen by timing them",
        read=("import mamba_ssm",),
        cost="an ordered sum over a workspace of zeros",
        evidence="Megatron main core/ssm/ops/common/determinism.py:27, training/determinism.py:106",
        mark="source only",
    ),
    Rule(
        name="CAUSAL_CONV1D_DETERMINISTIC",
        kind="variable",
        library="causal-conv1d",
        accepts=("1*",),
        fill="1",
        why="else its weight gradient is summed by atomics; needs causal-conv1d 1.6.0",
        read=("import causal_conv1d",),
        cost="an ordered sum over a workspace of each block",
        evidence="Megatron main core/ssm/causal_conv1d.py:34; M#6655",
        mark="source only",
    ),
    Rule(
        name="TRITON_CACHE_AUTOTUNING",
        kind="variable",
        library="Triton",
        accepts=("0", "1"),
        fill=None,
        why="each process times Triton's kernels and takes the fastest, 13 of 22 picks differed "
        "between ranks; 1 keeps the first pick; " + PIN,
        read=("import triton",),
        cost="",
        evidence="M#6966 (merged), M#6076",
        mark="public report",
    ),
    Rule(
        name="TRITON_CACHE_DIR",
        kind="variable",
        library="Triton",
        accepts=("?*",),
        fill=None,
        needed_with="TRITON_CACHE_AUTOTUNING=1",
        why="without it each node keeps its own picks: name a folder that all nodes share",
        read=("import triton",),
        cost="",
        evidence="M#6966 (merged)",
        mark="public report",
    ),
)
