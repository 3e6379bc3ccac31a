"""Tiny models for the tests of this folder."""

from typing import Any

import torch

from bitstep.train.draw import Draw
from bitstep.train.model.config import ModelConfig
from bitstep.train.model.hybrid import HybridModel
from bitstep.train.model.initial import initialise

DRAW = Draw(seed=1, counter=2, rank=3)

SIZES: dict[str, Any] = {
    "pattern": "M*E-",
    "hidden": 16,
    "vocabulary": 33,
    "mamba_heads": 4,
    "mamba_head_dim": 6,
    "mamba_state": 5,
    "mamba_groups": 2,
    "chunk": 4,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 3,
    "mlp_width": 20,
    "experts": 5,
    "top_k": 2,
    "expert_width": 7,
    "shared_width": 9,
}


def tiny_config(**changes: Any) -> ModelConfig:
    return ModelConfig(**{**SIZES, **changes})


def fill(module: torch.nn.Module, config: ModelConfig, prefix: str = "", seed: int = 7) -> None:
    """Fill a module that was built on any device; `prefix` is its path in a model."""
    module.to_empty(device="cpu")
    tensors = [*module.named_parameters(), *module.named_buffers()]
    with torch.no_grad():
        for name, tensor in tensors:
            tensor.copy_(initialise(prefix + name, tensor.shape, config, seed))


def build(config: ModelConfig, seed: int = 7, recompute: bool = False) -> HybridModel:
    with torch.device("meta"):
        model = HybridModel(config, recompute)
    fill(model, config, seed=seed)
    return model


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def tokens(config: ModelConfig, batch: int = 2, length: int = 11, seed: int = 0) -> torch.Tensor:
    """[batch, length + 1 + D]"""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, length + 1 + config.mtp_depth)
    return torch.randint(config.vocabulary, shape, generator=generator)


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: p.grad for name, p in model.named_parameters()}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal dtype, shape and bits: -0.0 and NaN count as what they are."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(
            a.detach().contiguous().flatten().view(torch.uint8),
            b.detach().contiguous().flatten().view(torch.uint8),
        )
    )
