"""Rules about settings of torch: read by every operation, and by some modules when they are made.

Values are text, as `switches.read` gives them. `default` is what torch has where nobody chose: such
a value is replaced. Any other that is not accepted was chosen by somebody, and is refused.

>>> [rule.fill for rule in SETTINGS if rule.name == "torch.use_deterministic_algorithms"]
['strict']
"""

from __future__ import annotations

from typing import Final

from bitstep.contract.rule import NUMBER, Rule

_EFFECTS: Final = "tests/contract/test_rules_effects.py"
_IEEE: Final = ("none", "ieee")
_ROUNDS: Final = "float32 products are rounded to less before they are summed"

SETTINGS: Final[tuple[Rule, ...]] = (
    Rule(
        name="torch.use_deterministic_algorithms",
        kind="torch",
        library="PyTorch",
        accepts=("strict",),
        default=("off",),
        fill="strict",
        why="index_put_, scatter_add_ and others sum by atomics; warn_only lets them, and the "
        'debug mode "warn" is the same thing',
        read=("CUDA in use",),
        cost="ordered sums in scatters, embeddings and attention backward; an operation without a "
        "deterministic path raises",
        evidence=_EFFECTS,
        mark="measured",
    ),
    Rule(
        name="torch.utils.deterministic.fill_uninitialized_memory",
        kind="torch",
        library="PyTorch",
        accepts=("False",),
        default=("True",),
        fill="False",
        why="the fill races with streams of communication, raises for float4, and hides reads of "
        "what nobody wrote, which a recording finds instead",
        read=("CUDA in use",),
        cost="none: the fill is most of what strict mode costs on a GPU (M#7093)",
        evidence=_EFFECTS,
        mark="measured",
    ),
    Rule(
        name="torch.set_float32_matmul_precision",
        kind="torch",
        library="PyTorch",
        accepts=("highest",),
        fill="highest",
        why=f"{_ROUNDS}: to bf16 on CPUs that can, to TF32 on GPUs",
        read=("CUDA in use",),
        cost="float32 products run at their own speed",
        evidence=_EFFECTS,
        mark="measured",
    ),
    Rule(
        name="torch.backends.fp32_precision",
        kind="torch",
        library="PyTorch",
        accepts=_IEEE,
        fill="none",
        why=f"{_ROUNDS}; the others inherit it",
        read=("CUDA in use",),
        cost="",
        evidence="torch 2.13 backends/__init__.py",
        mark="source only",
    ),
    Rule(
        name="torch.backends.mkldnn.conv.fp32_precision",
        kind="torch",
        library="oneDNN",
        accepts=_IEEE,
        fill="none",
        why=_ROUNDS,
        read=("CUDA in use",),
        cost="",
        evidence=_EFFECTS,
        mark="measured",
    ),
    Rule(
        name="torch.backends.mkldnn.rnn.fp32_precision",
        kind="torch",
        library="oneDNN",
        accepts=_IEEE,
        fill="none",
        why=f"{_ROUNDS}; an LSTM on this CPU had the same bits with bf16",
        read=("CUDA in use",),
        cost="",
        evidence="torch 2.13 backends/mkldnn/__init__.py",
        mark="source only",
    ),
    Rule(
        name="torch.get_num_threads",
        kind="torch",
        library="PyTorch",
        accepts=(NUMBER,),
        fill=None,
        takes_threads=True,
        why="sums are cut into one part a thread: another number adds in another order",
        read=("CUDA in use",),
        cost="",
        evidence=_EFFECTS,
        mark="measured",
    ),
    Rule(
        name="torch._inductor.config.deterministic",
        kind="torch",
        library="Inductor",
        accepts=("True",),
        default=("False",),
        fill="True",
        why="else compiled kernels are chosen by timing them; the debug mode does not set it",
        read=("first graph",),
        cost="slower kernels where a timed choice was better",
        evidence="torch 2.13 _inductor/config.py:1009, __init__.py use_deterministic_algorithms",
        mark="source only",
    ),
    Rule(
        name="torch.backends.cudnn.deterministic",
        kind="torch",
        library="cuDNN",
        accepts=("True",),
        default=("False",),
        fill="True",
        why="some algorithms of convolution backward sum by atomics",
        read=("CUDA in use",),
        cost="slower convolutions",
        evidence="torch documentation, backends.cudnn",
        mark="source only",
    ),
    Rule(
        name="torch.backends.cudnn.benchmark",
        kind="torch",
        library="cuDNN",
        accepts=("False",),
        fill="False",
        why="it times algorithms in each process and takes the fastest",
        read=("CUDA in use",),
        cost="slower convolutions where a timed choice was better",
        evidence="torch documentation, backends.cudnn",
        mark="source only",
    ),
    Rule(
        name="torch.backends.cudnn.allow_tf32",
        kind="torch",
        library="cuDNN",
        accepts=("False",),
        default=("True",),
        fill="False",
        why="float32 convolutions are rounded to TF32, on GPUs that can and no others",
        read=("CUDA in use",),
        cost="float32 convolutions run at their own speed",
        evidence="torch documentation, TF32",
        mark="source only",
    ),
    *(
        Rule(
            name=f"torch.backends.cuda.matmul.allow_{kind}_reduced_precision_reduction",
            kind="torch",
            library="cuBLAS",
            accepts=("False",),
            default=("True",),
            fill="False",
            why=f"split sums of {kind} products are added in {kind}, by kernels chosen by shape",
            read=("CUDA in use",),
            cost="a little speed where a product is split",
            evidence="torch documentation, reduced precision reduction",
            mark="source only",
        )
        for kind in ("bf16", "fp16")
    ),
    Rule(
        name="torch.backends.cuda.matmul.allow_fp16_accumulation",
        kind="torch",
        library="cuBLAS",
        accepts=("False",),
        fill="False",
        why="fp16 products are summed in fp16",
        read=("CUDA in use",),
        cost="",
        evidence="torch documentation, full fp16 accumulation",
        mark="source only",
    ),
)
