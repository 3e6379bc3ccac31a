"""`run.precision`: in which dtype a model computes, and which of its products are quantized.

    float32    all of it
    bfloat16   all but norms, router, scan and losses, which are float32
    mxfp8      as bfloat16, and the linear layers of the blocks have MXFP8 operands
    nvfp4      as bfloat16, and they have NVFP4 operands, gradients rounded stochastically

Embedding, head, norms, router, convolution, scan, attention scores and the projection that joins a
depth of `mtp` are not quantized, as is usual. Masters, moments and reductions are float32 in all.
What the formats are, and where they are more than emulated: docs/precision.md.

>>> COMPUTE["nvfp4"], is_quantized("nvfp4"), is_quantized("bfloat16")
(torch.bfloat16, True, False)
"""

from __future__ import annotations

import importlib.metadata

import torch
from torch import nn

from bitstep.errors import UsageError
from bitstep.faults import Fault
from bitstep.train.model.block import Block
from bitstep.train.model.linear import Linear

COMPUTE = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "mxfp8": torch.bfloat16,
    "nvfp4": torch.bfloat16,
}
"""Dtype of parameters and activations in forward and backward, by precision."""


def is_quantized(precision: str) -> bool:
    """Whether linear layers have quantized operands."""
    return precision in ("mxfp8", "nvfp4")


def software(precision: str) -> dict[str, str]:
    """Manifest keys of what rounds; empty where torch alone does."""
    if not is_quantized(precision):
        return {}
    return {"software.torchao": importlib.metadata.version("torchao")}


def quantize(model: nn.Module, precision: str, fault: Fault | None = None) -> None:
    """Give the linear layers of every block the operands of the precision; others are left as is.

    Before the model is sharded, and on its device. Raises UsageError for a fault that this
    precision does not have, and ModuleNotFoundError without torchao.
    """
    keyed = fault is None or fault.kind != "process-wide-rounding"
    if not keyed and precision != "nvfp4":
        raise UsageError(
            f"fault process-wide-rounding: with run.precision = {precision} nothing is rounded "
            "stochastically; set run.precision=nvfp4"
        )
    if not is_quantized(precision):
        return
    # Only here: importing torchao takes a second, and it may not be there.
    from bitstep.train.model.formats import FORMATS
    from bitstep.train.model.quantized import QuantizedLinear

    for path, block in model.named_modules():
        if not isinstance(block, Block):
            continue
        for name, layer in list(block.named_modules()):
            if isinstance(layer, Linear):
                quantized = QuantizedLinear(
                    layer.in_features,
                    layer.out_features,
                    FORMATS[precision],
                    f"{path}.{name}",
                    keyed,
                )
                block.set_submodule(name, quantized)
                block.rounded.append(quantized)
