"""What a config says for conversions to GGUF alone."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.errors import ProfileError
from kvcalc.core.model import ModelProfile
from kvcalc.importers.hugging_face import import_config

_LLAMA = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 96, "num_hidden_layers": 2, "vocab_size": 100, "max_position_embeddings": 512,
}  # fmt: skip


def _model(**keys: Any) -> ModelProfile:
    return import_config(_LLAMA | keys, name="small")[0]


@pytest.mark.parametrize(
    ("scaling", "elements"),
    [
        (None, 0),
        ({"rope_type": "yarn", "factor": 4.0}, 0),
        ({"rope_type": "llama3", "factor": 8.0}, 48),
        ({"type": "longrope", "long_factor": [1.0] * 36, "short_factor": [1.0] * 36}, 72),
    ],
)
def test_rotary_factors_are_half_a_head_or_both_lists(scaling: dict[str, Any] | None, elements: int) -> None:
    assert _model(rope_scaling=scaling).rotary_factors == elements
    assert scaling is None or _model(rope_parameters=scaling).rotary_factors == elements


def test_layers_that_predict_further_tokens_are_told_apart() -> None:
    assert _model().prediction_layers == 0
    assert _model(num_nextn_predict_layers=2).prediction_layers == 2
    with pytest.raises(ProfileError, match="num_nextn_predict_layers"):
        _model(num_nextn_predict_layers=-1)
