"""What a model section may hold."""

import pytest
from model_helpers import SIZES, tiny_config
from pydantic import ValidationError

from bitstep.train.model.config import ModelConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": "M?*x"}, "the pattern 'M?*x' must be one or more of the letters M * E -"),
        ({"pattern": "M?*x"}, "remove '?', 'x'"),
        ({"pattern": ""}, "the pattern '' must be one or more of the letters M * E -"),
        ({"mtp_pattern": "T"}, "the pattern 'T' must be one or more"),
        ({"kv_heads": 3}, "kv_heads 3 must divide heads 4"),
        ({"mamba_groups": 3}, "mamba_groups 3 must divide mamba_heads 4"),
        ({"top_k": 6}, "top_k 6 must be at most experts 5"),
        ({"dropout": 1.0}, "less than 1"),
        ({"hidden": 0}, "greater than or equal to 1"),
        ({"score": "tanh"}, "'softmax' or 'sigmoid'"),
        ({"hiden": 3}, "Extra inputs are not permitted"),
        ({"norm_eps": float("nan")}, "norm_eps"),
        ({"balance_loss": float("inf")}, "finite number"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        ModelConfig.model_validate({**SIZES, **changes})
    assert message in str(caught.value)


def test_it_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        tiny_config().hidden = 3  # type: ignore[misc]


def test_every_field_is_described() -> None:
    assert [n for n, field in ModelConfig.model_fields.items() if not field.description] == []


def test_it_is_the_same_after_a_trip_through_json() -> None:
    config = tiny_config(score="softmax")
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config
