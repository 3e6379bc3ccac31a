"""The shape of a model: the `model` section of a recipe.

>>> ModelConfig.model_validate({"pattern": "M?"})  # doctest: +IGNORE_EXCEPTION_DETAIL
Traceback (most recent call last):
pydantic_core._pydantic_core.ValidationError: ...
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

LETTERS = "M*E-"


class ModelConfig(BaseModel):
    """Sizes and coefficients of one model; nothing here depends on how it is executed."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    pattern: str
    """Blocks in order: M Mamba-2, * attention, E mixture of experts, - MLP."""
    hidden: int = Field(ge=1)
    """Width of the residual stream."""
    vocabulary: int = Field(default=257, ge=2)
    """Number of token ids: 256 bytes and the separator of documents."""

    mamba_heads: int = Field(ge=1)
    """Heads of a Mamba-2 mixer; its inner width is mamba_heads x mamba_head_dim."""
    mamba_head_dim: int = Field(ge=1)
    """Width of one Mamba-2 head."""
    mamba_state: int = Field(ge=1)
    """State size of a Mamba-2 head."""
    mamba_groups: int = Field(default=1, ge=1)
    """Groups of heads that share B and C, and a group of the gated norm; divides mamba_heads."""
    conv_width: int = Field(default=4, ge=1)
    """Tokens that the causal convolution of a Mamba-2 mixer sees."""
    chunk: int = Field(ge=1)
    """Tokens per chunk of the Mamba-2 scan. It sets speed and rounding, not what is computed."""

    heads: int = Field(ge=1)
    """Query heads of attention."""
    kv_heads: int = Field(ge=1)
    """Key and value heads of attention; divides heads."""
    head_dim: int = Field(ge=1)
    """Width of one attention head."""

    mlp_width: int = Field(ge=1)
    """Inner width of an MLP block."""

    experts: int = Field(ge=1)
    """Routed experts of an E block."""
    top_k: int = Field(ge=1)
    """Experts that each token goes to; at most experts."""
    expert_width: int = Field(ge=1)
    """Inner width of a routed expert."""
    shared_width: int = Field(ge=1)
    """Inner width of the shared expert, which every token goes through."""
    score: Literal["softmax", "sigmoid"] = "sigmoid"
    """How router logits become scores."""
    balance_loss: float = Field(default=1e-2, ge=0)
    """Coefficient of the load-balancing loss."""
    z_loss: float = Field(default=1e-3, ge=0)
    """Coefficient of the z-loss of the router logits."""
    bias_rate: float = Field(default=1e-3, ge=0)
    """What a step adds to, or takes from, the bias of an expert; 0 leaves the biases alone."""

    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability that an output of a mixer is dropped while training."""
    mtp_depth: int = Field(default=1, ge=0)
    """Further tokens predicted at each position; 0 predicts the next token only."""
    mtp_pattern: str = "*-"
    """Blocks of each multi-token-prediction depth, in the letters of pattern."""
    mtp_weight: float = Field(default=0.3, ge=0)
    """Weight of the mean of the multi-token-prediction losses in the total."""
    norm_eps: float = Field(default=1e-5, gt=0)
    """What every RMSNorm adds to the mean square."""
    init_std: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial matrices."""

    @field_validator("pattern", "mtp_pattern")
    @classmethod
    def _only_known_letters(cls, pattern: str) -> str:
        unknown = sorted(set(pattern) - set(LETTERS))
        if unknown or not pattern:
            raise ValueError(
                f"the pattern {pattern!r} must be one or more of the letters M * E -"
                + (f"; remove {', '.join(map(repr, unknown))}" if unknown else "")
            )
        return pattern

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} must divide heads {self.heads}")
        if self.mamba_heads % self.mamba_groups:
            raise ValueError(
                f"mamba_groups {self.mamba_groups} must divide mamba_heads {self.mamba_heads}"
            )
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} must be at most experts {self.experts}")
        return self
