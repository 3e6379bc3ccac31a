"""Rows of CUDA: the list that torch 2.13 keeps itself, and what is known beside it.

1. Of torch's list, some take another path under the deterministic flag, the others refuse.
2. What is not in that list: attention, products of matrices, embeddings, compiled attention.

No row here was measured by us; `bitstep survey --device cuda` measures on such a machine. pt#n and
tt#n are threads of pytorch/pytorch and pytorch/torchtitan, M#n of NVIDIA/Megatron-LM.

>>> CUDA[0].setting
'torch.use_deterministic_algorithms(True)'
"""

from __future__ import annotations

from typing import Any, Final

from bitstep.contract.catalog_row import CUBLAS, FLAG, Condition, Row

LIST: Final = "the list of torch.use_deterministic_algorithms, torch 2.13"
BACKWARD: Final = "in the backward pass"


def _path(op: str, when: str = "", only: tuple[Condition, ...] = (), **more: Any) -> Row:
    """It takes another path under the flag."""
    return Row(
        op=op, device="cuda", varies="run to run", when=when, only=only, setting=FLAG,
        **{"mechanism": "atomics", "evidence": LIST, "mark": "source only"} | more,
    )  # fmt: skip


def _refused(op: str, when: str = "", alternative: str = "") -> Row:
    """The flag refuses it."""
    return Row(
        op=op, device="cuda", varies="run to run", when=when, mechanism="atomics", raises=True,
        alternative=alternative, evidence=LIST, mark="source only",
    )  # fmt: skip


_PATHS: Final = (
    _path("aten.convolution", mechanism="kernel choice"),
    _path("aten.convolution_backward", mechanism="kernel choice"),
    _path("aten.replication_pad?d_backward"),
    _path("aten.scatter_add", only=("duplicate indices",), when="also the gradient of gather",
          evidence=f"{LIST}; in mixtures of experts tt#1974, tt#2775"),
    _path("aten.index_add", only=("duplicate indices",), when="also the gradient of index_select "
          "and of repeat_interleave"),
    _path("aten.index_copy", only=("duplicate indices",), mechanism="race"),
    _path("aten.index_put", only=("duplicate indices",), mechanism="race",
          when="with accumulate=False; with True it sorts (pt#171381 proposes atomics)"),
    _path("aten.scatter", only=("duplicate indices",), mechanism="race", when="of a tensor"),
    _path("aten.scatter_reduce", only=("duplicate indices",), when='with "sum" or "mean"'),
    _path("aten.max_pool3d_with_indices_backward"),
)  # fmt: skip

_REFUSED: Final = (
    _refused("aten.avg_pool3d_backward"),
    _refused("aten._adaptive_avg_pool?d_backward"),
    _refused("aten.adaptive_max_pool2d_backward"),
    _refused("aten.fractional_max_pool?d_backward"),
    _refused("aten.max_unpool?d", "where windows overlap"),
    _refused("aten.upsample_linear1d_backward"),
    _refused("aten.upsample_bilinear2d_backward"),
    _refused("aten.upsample_bicubic2d_backward"),
    _refused("aten.upsample_trilinear3d_backward"),
    _refused("aten.reflection_pad?d_backward"),
    _refused("aten.nll_loss2d_forward", "the loss of images, with a class for each pixel"),
    _refused("aten._ctc_loss_backward"),
    _refused("aten._embedding_bag_backward", 'with mode="max"'),
    _refused("aten._embedding_bag_dense_backward", 'with mode="max"'),
    _refused("aten.put", alternative="index_put_ under the flag"),
    _refused("aten.histc"),
    _refused("aten.bincount", "with weights", "index_add_ into zeros, under the flag"),
    _refused("aten.median", "where it gives indices too", "sort, and take the middle"),
    _refused("aten.grid_sampler_?d_backward"),
    _refused("aten.cumsum", "of floating or complex numbers"),
    _refused("aten.scatter_reduce", 'with "prod"'),
    _refused("aten.resize", "of a quantized tensor"),
)  # fmt: skip

_WARN: Final = (
    "under warn_only the flag warns and changes nothing here: hold it strictly, or take "
    "sdpa_kernel(SDPBackend.MATH)"
)


def _attention(kind: str) -> Row:
    return _path(
        f"aten.{kind}_attention_backward", BACKWARD, alternative=_WARN,
        evidence="attention_backward.cu:99 of torch only warns under warn_only; pt#182551",
    )  # fmt: skip


def _product(op: str) -> Row:
    return Row(
        op=op, device="cuda", varies="run to run", setting=CUBLAS, mechanism="split reduction",
        when="in several streams, without a fixed workspace: cuBLAS then picks by free memory",
        evidence="not in torch's list; documentation of cuBLAS on reproducibility",
        mark="source only",
    )  # fmt: skip


_BESIDE: Final = (
    _attention("_scaled_dot_product_flash"),
    _attention("_scaled_dot_product_efficient"),
    _attention("_flash"),
    _attention("_efficient"),
    Row(
        op="aten._scaled_dot_product_cudnn_attention*", device="cuda", varies="run to run",
        mechanism="algorithm of a library", setting=FLAG,
        alternative="torch.backends.cuda.enable_cudnn_sdp(False)",
        evidence="the strict flag leaves it out of the choice; pt#182551", mark="source only",
    ),
    *map(_product, ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.mv", "aten.addmv",
                    "aten._addmm_activation")),
    _path("aten.bmm", "of a sparse and a dense tensor", mechanism="algorithm of a library"),
    Row(
        op="aten.embedding_dense_backward", device="cuda", varies="run to run",
        only=("duplicate indices",), mechanism="atomics",
        alternative="weight[indices], under the flag",
        evidence="Megatron's deterministic mode replaces it (op-catalog.md:29-71, layers.py:358); "
        "M#7149 (open) has a deterministic backward", mark="source only",
    ),
    Row(
        op="higher_order.flex_attention*", device="cuda", varies="run to run",
        mechanism="autotune", alternative="no max-autotune",
        evidence="tt#1808; on ROCm tt#3960, tt#3896", mark="public report",
    ),
    Row(
        op="aten.topk", device="cuda", varies="run to run", mechanism="not known",
        when="recomputed under selective checkpointing",
        evidence="tt#3146, tt#3436, tt#3450", mark="public report",
    ),
)  # fmt: skip

CUDA: Final[tuple[Row, ...]] = (*_PATHS, *_REFUSED, *_BESIDE)
