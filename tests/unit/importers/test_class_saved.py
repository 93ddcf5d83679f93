"""Configs as transformers' own classes save them, which say more than published ones, and sometimes less.

The parameters are those of the classes of transformers 5.24.0, built without storage.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.cost.parameters import active_parameters, parameters
from kvcalc.importers.hugging_face import import_config

_GLM4V: dict[str, Any] = {
    "model_type": "glm4v_text", "hidden_size": 512, "intermediate_size": 328, "num_attention_heads": 8,
    "num_hidden_layers": 5, "num_key_value_heads": 2, "vocab_size": 1003,
}  # fmt: skip
_STEP: dict[str, Any] = {
    "model_type": "step3p5", "attention_bias": False, "head_dim": 32, "hidden_size": 160, "intermediate_size": 328,
    "layer_types": ["full_attention"] * 5, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 2,
    "moe_intermediate_size": 104, "mtp_layer_types": None, "n_routed_experts": 16, "num_attention_heads": 8,
    "num_experts_per_tok": 3, "num_hidden_layers": 5, "num_key_value_heads": 2, "num_nextn_predict_layers": 0,
    "num_sliding_attention_heads": 64, "per_layer_config": {}, "share_expert_dim": 1280, "sliding_window": 37,
    "tie_word_embeddings": False, "vocab_size": 1003,
}  # fmt: skip
_ZAMBA2: dict[str, Any] = {
    "model_type": "zamba2", "adapter_rank": 128, "attention_head_dim": 160, "attention_hidden_size": 5120,
    "hidden_size": 2560, "hybrid_layer_ids": [6, 12, 18, 24, 30, 36, 42, 47, 51], "intermediate_size": 10240,
    "kv_channels": 80, "layers_block_type": ["linear_attention"] * 6 + ["hybrid"], "mamba_d_conv": 4,
    "mamba_d_state": 64, "mamba_expand": 2, "mamba_headdim": 640, "mamba_ngroups": 1, "n_mamba_heads": 8,
    "num_attention_heads": 32, "num_hidden_layers": 7, "num_key_value_heads": 8, "num_mem_blocks": 1,
    "num_query_groups": 32, "tie_word_embeddings": True, "vocab_size": 1003,
}  # fmt: skip
_MINIMAX: dict[str, Any] = {
    "model_type": "minimax_m3_vl_text", "dense_intermediate_size": 12288, "head_dim": 128, "hidden_size": 6144,
    "index_block_size": 128, "index_head_dim": 128, "index_local_blocks": 1, "index_n_heads": 4,
    "index_topk_blocks": 16, "intermediate_size": 3072, "layer_types": ["full_attention"] * 60,
    "mlp_layer_types": ["sparse"] * 60, "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 60,
    "num_key_value_heads": 4, "num_local_experts": 128, "shared_intermediate_size": 3072,
    "tie_word_embeddings": False, "vocab_size": 200064,
}  # fmt: skip
_EXAONE: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4, "vocab_size": 102400,
}  # fmt: skip


def _text_parameters(config: dict[str, Any]) -> int:
    return sum(size for part, size in parameters(import_config(config, name="m")[0]).items() if part != "vision")


@pytest.mark.parametrize(
    ("text", "total"),
    [
        pytest.param(_GLM4V, 6_323_968 + 513_536, id="glm4v"),
        pytest.param(_GLM4V | {"attention_bias": False}, 6_323_968 + 513_536, id="glm4v-attention_bias-ignored"),
        pytest.param(_STEP, 3_984_640 + 160_480, id="step3p7"),
        pytest.param(_ZAMBA2, 444_671_528, id="zamba2"),
        pytest.param(_MINIMAX, 445_957_248_000 + 1_229_193_216, id="minimax_m3_vl"),
    ],
)
def test_a_config_that_a_class_saved_has_the_parameters_of_the_class(text: dict[str, Any], total: int) -> None:
    assert _text_parameters(text) == total


def test_adapters_that_no_layer_uses_are_stored_and_not_multiplied() -> None:
    short = _ZAMBA2 | {"hybrid_layer_ids": [6]}
    idle = import_config(_ZAMBA2, name="m")[0].vector_parameters - import_config(short, name="m")[0].vector_parameters
    assert idle == 8 * 128 * (2560 + 2 * 10240)


def test_exaone4_5_text_means_exaone4() -> None:
    one, other = (
        import_config({"model_type": "exaone4_5", "text_config": {"model_type": name, **_EXAONE}}, name="m")[0]
        for name in ("exaone4", "exaone4_5_text")
    )
    assert (parameters(one), one.blocks) == (parameters(other), other.blocks)
    assert active_parameters(one) == active_parameters(other)
