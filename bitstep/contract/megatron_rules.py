"""What a launch of Megatron must hold for equal bits, as data: arguments, then variables.

1. A rule names an argument or a variable, the values it may have, and why.
2. `kind` is what another value is: broken (Megatron's deterministic mode refuses it), forgotten
   (it lets it pass), unchecked (may be as it is, but alike in all runs). `unset` is what a
   missing variable is, late: the process must start with it.
3. `checked_by` and `read` say who looks at it, and when it takes effect.

No statement here about a GPU was measured by us; each has its evidence. M#n, Bridge#n, TE#n are
threads of NVIDIA/Megatron-LM, NVIDIA-NeMo/Megatron-Bridge and NVIDIA/TransformerEngine. Files are
those of Megatron core_v0.16.1 (training/ is not in its wheel), of TransformerEngine d0067d0d.

>>> next(rule for rule in RULES if rule.what == "--tp-comm-overlap").checked_by
'Megatron after 0.16.1'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from bitstep.contract.rules import BY_NAME

Kind = Literal["broken", "forgotten", "late", "unchecked"]
Read = Literal[
    "interpreter start", "import", "validation", "construction", "communicator", "first use"
]
CheckedBy = Literal["Megatron 0.16.1", "Megatron after 0.16.1", "nobody else"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that decides bits."""

    what: str
    """The argument as it is typed, with its dashes, or the name of the variable."""
    accepts: tuple[str, ...]
    """Patterns of fnmatch; a flag is on or off. None fits: another run must have the same value."""
    kind: Kind
    """What a value is that is not accepted."""
    unset: Kind | None = None
    """What it is when the variable is not set; None: fine. An argument has a default instead."""
    needs: tuple[str, ...] = ()
    """The rule holds only where one of these is on, or has the value: ("--num-experts",)."""
    listed: bool = False
    """The value is a list with commas, each word of which is looked at."""
    why: str
    fix: str
    read: Read
    module: str = ""
    """Of what is read at import: the module."""
    checked_by: CheckedBy
    cost: str = ""
    evidence: str


DEFAULTS: Final = {
    "--attention-backend": "auto",
    "--moe-token-dispatcher-type": "allgather",
    "--transformer-impl": "transformer_engine",
}
"""Arguments that are not off when they are not given."""
FIELDS: Final = {
    "--fp4-format": ("fp4",),
    "--fp8-format": ("fp8",),
    "--hybrid-override-pattern": ("is_hybrid_model",),
    # Newer Megatron has a flag for the loss alone, and takes the other where it is not given.
    "--moe-router-fusion": ("moe_router_aux_loss_fusion",),
    "--num-experts": ("num_moe_experts",),
}
"""Names of an argument on TransformerConfig and the parsed arguments, looked at before its own."""
TELLING: Final = (
    "--max-position-embeddings", "--micro-batch-size", "--num-attention-heads",
    "--pipeline-model-parallel-size", "--tensor-model-parallel-size", "--train-iters",
    "--use-mcore-models",
)  # fmt: skip
"""By these, too, a command line is known for one of Megatron."""

_RECORD = "record it and compare"
_HYBRID = ("--hybrid-layer-pattern", "--hybrid-override-pattern")

ARGUMENTS: Final[tuple[Rule, ...]] = (
    Rule(
        what="--deterministic-mode",
        accepts=("on",),
        kind="broken",
        why="embedding, MoE and attention backward add by atomics, and nothing else is checked",
        fix="give it",
        read="construction",
        checked_by="Megatron 0.16.1",
        cost="about 15% of step time, 4% dense to 17% hybrid MoE; about 2% with torch's fill of "
        "empty memory off (M#6253, M#7093; 0.16.1 leaves the fill on)",
        evidence="training/arguments.py:1073; core/tensor_parallel/layers.py:235, 283",
    ),
    Rule(
        what="--yaml-cfg",
        accepts=("off",),
        kind="forgotten",
        why="its path replaces the arguments and never applies deterministic mode",
        fix="give the settings as arguments",
        read="validation",
        checked_by="nobody else",
        evidence="training/initialize.py:89; training/arguments.py:105; M#7419 (open)",
    ),
    Rule(
        what="--cross-entropy-loss-fusion",
        accepts=("off",),
        kind="broken",
        why="the fused kernel does not repeat",
        fix="drop it",
        read="validation",
        checked_by="Megatron 0.16.1",
        evidence="training/arguments.py:1075",
    ),
    Rule(
        what="--use-flash-attn",
        accepts=("off",),
        kind="broken",
        why="0.16.1 refuses it, and newer ones do not read it",
        fix="drop it, and name an --attention-backend",
        read="validation",
        checked_by="Megatron 0.16.1",
        evidence="training/arguments.py:1074",
    ),
    Rule(
        what="--tp-comm-overlap",
        accepts=("off",),
        kind="broken",
        why="runs stopped repeating with it; the mechanism is not known",
        fix="drop it",
        read="construction",
        checked_by="Megatron after 0.16.1",
        evidence="Bridge#2168 (open); refused since M#5041; M#6030, M#7350 ask why",
    ),
    Rule(
        what="--moe-router-fusion",
        accepts=("off",),
        kind="broken",
        needs=("--num-experts",),
        why="the fused auxiliary loss adds by atomics: 7 of 7 repeats differed",
        fix="drop it, or in newer Megatron the part moe_router_aux_loss_fusion",
        read="first use",
        checked_by="Megatron after 0.16.1",
        evidence="M#6254, M#6967 (merged), M#7221 (open); TE fused_moe_aux_loss.cu:69, 173",
    ),
    Rule(
        what="--moe-permute-fusion",
        accepts=("off",),
        kind="forgotten",
        needs=("--num-experts",),
        why="fused unpermute has no deterministic path: its backward sums in blocks picked by time",
        fix="drop it",
        read="first use",
        checked_by="nobody else",
        cost="unfused unpermute is a hot spot of deterministic mode, and takes more memory",
        evidence="core/transformer/moe/moe_utils.py:413; TE common/triton/permutation.py:429-523",
    ),
    Rule(
        what="--moe-token-dispatcher-type",
        accepts=("allgather", "alltoall"),
        kind="forgotten",
        needs=("--num-experts",),
        why="DeepEP's combine races with the fill of empty memory, which 0.16.1 leaves on: NaN",
        fix="take alltoall",
        read="construction",
        checked_by="nobody else",
        evidence="deepseek-ai/DeepEP#589, #600 (open)",
    ),
    Rule(
        what="--fp4-format",
        accepts=("off",),
        kind="forgotten",
        why="a weight-gradient GEMM of FP4 with FP32 result differed on equal inputs",
        fix="train in bf16 or FP8, or expect differences",
        read="first use",
        checked_by="nobody else",
        evidence="M#7262; Bridge#2172",
    ),
    Rule(
        what="--experimental-attention-variant",
        accepts=("off", "gated_delta_net", "gdn", "gdn2"),
        kind="forgotten",
        why="kernels of sparse attention and of its indexer add by atomics",
        fix="take another attention until M#7441 is merged",
        read="construction",
        checked_by="nobody else",
        evidence="M#7441 (open); M#5729 saw a small model with dsa repeat",
    ),
    Rule(
        what="--fp8-format",
        accepts=("off",),
        kind="unchecked",
        why="FP8 attention needs cuDNN 9.19 to be deterministic; maxima do not depend on order",
        fix=f"{_RECORD}: versions of Transformer Engine and cuDNN",
        read="first use",
        checked_by="nobody else",
        evidence="TE attention/dot_product_attention/utils.py:1504-1565",
    ),
    Rule(
        what="--attention-backend",
        accepts=("flash", "fused", "local", "unfused"),
        kind="unchecked",
        needs=("--transformer-impl=transformer_engine",),
        why="Transformer Engine chooses by version, GPU and shape",
        fix="name one, as --attention-backend flash",
        read="construction",
        checked_by="nobody else",
        evidence="core/models/common/language_module/language_module.py:92",
    ),
    Rule(
        what="--overlap-grad-reduce",
        accepts=("off",),
        kind="unchecked",
        why="without it there is one bucket: the ring adds in another order",
        fix=f"{_RECORD}, with --ddp-bucket-size and --ddp-num-buckets",
        read="construction",
        checked_by="nobody else",
        evidence="core/distributed/distributed_data_parallel.py:64-68 (inferred)",
    ),
    Rule(
        what="--overlap-moe-expert-parallel-comm",
        accepts=("off",),
        kind="unchecked",
        needs=("--num-experts",),
        why="it orders the work of microbatches anew, and so the sums of gradients",
        fix=_RECORD,
        read="construction",
        checked_by="nobody else",
        evidence="core/model_parallel_config.py (inferred)",
    ),
    Rule(
        what="--use-sharp",
        accepts=("off",),
        kind="unchecked",
        why="switches of the network add, in an order of theirs; tried at small scale only",
        fix=_RECORD,
        read="communicator",
        checked_by="nobody else",
        evidence="M main training/determinism.py:33-45",
    ),
    Rule(
        what="--nccl-communicator-config-path",
        accepts=("off",),
        kind="unchecked",
        why="its file sets thread blocks of communicators; it is compared nowhere",
        fix="compare the file",
        read="communicator",
        checked_by="nobody else",
        evidence="source only, inferred",
    ),
)

_UNCHECKED: Final[tuple[tuple[str, str, Read, str], ...]] = (
    ("CUDA_DEVICE_MAX_CONNECTIONS", "it orders kernels of streams", "first use", "M#7419 (open)"),
    ("NCCL_PROTO", "it cuts messages in other pieces", "communicator", "M#7419 (open)"),
    ("NCCL_MIN_NCHANNELS", "channels are rings", "communicator", "source only, inferred"),
    ("NCCL_MAX_NCHANNELS", "channels are rings", "communicator", "source only, inferred"),
    ("NCCL_NVLS_ENABLE", "switches add in an order of theirs", "communicator", "NCCL#2360"),
    ("NVIDIA_TF32_OVERRIDE", "it changes what GEMMs read", "first use", "its documentation"),
)
"""Variables that are looked at only where they are set: (name, why, read, evidence)."""


def _as_everywhere(name: str) -> dict[str, Any]:
    """What the rule of every program says about a variable."""
    rule = BY_NAME[name]
    return {"what": name, "accepts": rule.accepts, "why": rule.why}


VARIABLES: Final[tuple[Rule, ...]] = (
    Rule(
        **_as_everywhere("NCCL_ALGO"),
        kind="broken",
        unset="late",
        listed=True,
        fix="export NCCL_ALGO=Ring",
        read="communicator",
        checked_by="Megatron after 0.16.1",
        evidence="M main training/determinism.py:48; 0.16.1 wants one set, and lets Tree pass "
        "(training/arguments.py:1077)",
    ),
    Rule(
        what="NVTE_ALLOW_NONDETERMINISTIC_ALGO",
        accepts=BY_NAME["NVTE_ALLOW_NONDETERMINISTIC_ALGO"].accepts,
        kind="broken",
        unset="late",
        needs=("--transformer-impl=transformer_engine",),
        why="attention of Transformer Engine adds by atomics; some kernels read it at import",
        fix="export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0",
        read="import",
        module="transformer_engine",
        checked_by="Megatron 0.16.1",
        evidence="core/extensions/transformer_engine.py:1254; TE pytorch/triton/mhc.py:29",
    ),
    Rule(
        **_as_everywhere("CUBLAS_WORKSPACE_CONFIG"),
        kind="broken",
        unset="late",
        fix="export CUBLAS_WORKSPACE_CONFIG=:4096:8",
        read="first use",
        checked_by="Megatron after 0.16.1",
        evidence="M main training/determinism.py:62",
    ),
    *(
        Rule(
            what=name,
            accepts=("", "1*"),
            kind="broken",
            why="it turns the ordered sums of state-space layers off",
            fix="unset it, or set it to 1",
            read="first use",
            checked_by="Megatron after 0.16.1",
            evidence="M main training/determinism.py:106; M#6655",
        )
        for name in ("MAMBA_DETERMINISTIC", "CAUSAL_CONV1D_DETERMINISTIC")
    ),
    Rule(
        what="TRITON_CACHE_AUTOTUNING",
        accepts=("1",),
        kind="forgotten",
        unset="late",
        needs=("--moe-permute-fusion", "--experimental-attention-variant", *_HYBRID),
        why="each process times Triton's kernels and takes the fastest; 13 of 22 picks differed",
        fix="export it as 1, and TRITON_CACHE_DIR",
        read="first use",
        checked_by="Megatron after 0.16.1",
        evidence="M#6966 (merged), M#6076",
    ),
    Rule(
        what="TRITON_CACHE_DIR",
        accepts=("?*",),
        kind="broken",
        unset="late",
        needs=("TRITON_CACHE_AUTOTUNING",),
        why="without it each node keeps its own picks",
        fix="export TRITON_CACHE_DIR, on a file system that all nodes share",
        read="first use",
        checked_by="Megatron after 0.16.1",
        evidence="M#6966 (merged)",
    ),
    Rule(
        what="PYTHONOPTIMIZE",
        accepts=("", "0"),
        kind="forgotten",
        why="Megatron checks by assert, and Python drops asserts",
        fix="unset it, and start Python without -O",
        read="interpreter start",
        checked_by="nobody else",
        evidence="training/arguments.py:1074-1079",
    ),
    Rule(
        what="PYTHONHASHSEED",
        accepts=("[0-9]*",),
        kind="forgotten",
        unset="late",
        why="the order of sets of names varies from process to process",
        fix="export PYTHONHASHSEED=0",
        read="interpreter start",
        checked_by="nobody else",
        evidence="documentation of Python, PYTHONHASHSEED",
    ),
    Rule(
        what="NCCL_TOPO_FILE",
        accepts=("?*",),
        kind="unchecked",
        unset="unchecked",
        why="NCCL_ALGO names the algorithm, not the ring: other nodes may add in another order",
        fix="compare runs on the same nodes",
        read="communicator",
        checked_by="nobody else",
        evidence="M main docs/developer/determinism/op-catalog.md; M#1881",
    ),
    *(
        Rule(
            what=name,
            accepts=(),
            kind="unchecked",
            why=why,
            fix=_RECORD,
            read=read,
            checked_by="nobody else",
            evidence=evidence,
        )
        for name, why, read, evidence in _UNCHECKED
    ),
)

RULES: Final = (*ARGUMENTS, *VARIABLES)
