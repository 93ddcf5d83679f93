"""MLX checkpoints: ``quantization`` without a method, by hand counts of scales, biases and what stays in 16 bits."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.errors import UnsupportedError
from kvcalc.importers.hugging_face import import_config
from kvcalc.plan.deployment import deploy
from kvcalc.plan.rank_memory import held_weight_bytes

_QWEN3_8B: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 36, "vocab_size": 151936,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
_MATRICES = 8_190_427_136
_NORMS = 36 * (2 * 4096 + 2 * 128) + 4096
_FOUR = {"group_size": 64, "bits": 4}


def _bytes(quantization: dict[str, Any], *, key: str = "quantization", **changes: Any) -> int:
    model, _ = import_config(_QWEN3_8B | {key: quantization} | changes, name="m")
    return held_weight_bytes(deploy(model))


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
def test_every_matrix_has_a_scale_and_a_bias_for_a_group_tables_and_head_too(key: str) -> None:
    # 4 bits and twice 16 for 64 elements: 4.5 bits each
    assert _bytes(_FOUR, key=key) == _MATRICES * 9 // 16 + 2 * _NORMS == 4_607_731_712


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_bits_and_groups_decide(bits: int, group: int) -> None:
    assert _bytes({"group_size": group, "bits": bits}) == (_MATRICES * bits + _MATRICES // group * 32) // 8 + 2 * _NORMS


def test_a_tied_table_is_quantised_once() -> None:
    untied = _bytes(_FOUR)
    assert untied - _bytes(_FOUR, tie_word_embeddings=True) == 151_936 * 4096 * 9 // 16


def test_entries_decide_for_their_modules() -> None:
    down = 4096 * 12288
    entries = {"lm_head": False, "model.layers.3.mlp.down_proj": {"group_size": 64, "bits": 8}, "model.norm": True}
    added = 151_936 * 4096 * (32 - 9) // 16 + down * 4 // 8
    assert _bytes(_FOUR | entries) == _bytes(_FOUR) + added


def test_stacked_experts_are_named_as_mlx_names_them() -> None:
    mixture = {
        "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
        "num_hidden_layers": 2, "decoder_sparse_step": 1, "mlp_only_layers": [],
    }  # fmt: skip
    plain = _bytes(_FOUR, **mixture)
    wider = {"model.layers.0.mlp.switch_mlp.gate_proj": {"group_size": 64, "bits": 8}}
    assert _bytes(_FOUR | wider, **mixture) - plain == 4 * 4096 * 256 * 4 // 8
    router = {"model.layers.0.mlp.gate": {"group_size": 64, "bits": 8}}
    assert _bytes(_FOUR | router, **mixture) - plain == 4 * 4096 * 4 // 8


def test_rows_that_no_group_divides_stay_in_16_bits() -> None:
    assert _bytes({"group_size": 128, "bits": 4}, intermediate_size=12352, num_hidden_layers=1) == (
        (2 * 151_936 * 4096 + 4096 * 10240 + 2 * 4096 * 12352) * 4.25 // 8
        + 2 * 4096 * 12352
        + 2 * (2 * 4096 + 256 + 4096)
    )


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"mode": "mxfp4", "bits": 4, "group_size": 32}, _MATRICES * 17 // 32),
        ({"mode": "nvfp4", "bits": 4, "group_size": 16}, _MATRICES * 9 // 16),
        ({"mode": "mxfp8", "bits": 8, "group_size": 32}, _MATRICES * 33 // 32),
    ],
)
def test_microscaling_modes_have_no_biases(settings: dict[str, Any], size: int) -> None:
    assert _bytes(settings) == size + 2 * _NORMS


@pytest.mark.parametrize("settings", [{"mode": "mxfp4", "bits": 4, "group_size": 64}, {"bits": 7, "group_size": 64}])
def test_settings_that_mlx_has_not_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="of the quantisation method 'mlx'"):
        _bytes(settings)


def test_old_gptq_files_without_a_method_are_still_gptq() -> None:
    model, _ = import_config(
        _QWEN3_8B | {"quantization_config": _FOUR | {"group_size": 128, "desc_act": False}}, name="m"
    )
    assert "embedding" not in model.weight_formats
