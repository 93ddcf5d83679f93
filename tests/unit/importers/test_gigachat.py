"""GigaChat 3.5 against the shapes that its classes in vLLM and SGLang make, added up one by one."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.errors import KvcalcError
from kvcalc.core.workload import Formats
from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.parameters import parameters
from kvcalc.importers.hugging_face import import_config

H, INNER, EXPERT, EXPERTS, VOCABULARY = 64, 96, 24, 6, 500
HEADS, Q_RANK, RANK, ROPE, NOPE, VALUE = 4, 20, 12, 8, 16, 10
K_HEADS, V_HEADS, K_DIM, V_DIM, KERNEL = 2, 4, 6, 10, 4
CONFIG: dict[str, Any] = {
    "model_type": "gigachat3_5", "architectures": ["GigaChat35ForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": H,
    "intermediate_size": INNER, "moe_intermediate_size": EXPERT, "num_hidden_layers": 5, "num_attention_heads": HEADS,
    "n_shared_experts": 1, "n_routed_experts": EXPERTS, "num_experts_per_tok": 2, "kv_lora_rank": RANK, "q_lora_rank": Q_RANK,
    "qk_rope_head_dim": ROPE, "v_head_dim": VALUE, "qk_nope_head_dim": NOPE, "first_k_dense_replace": 1,
    "max_position_embeddings": 4096, "norm_type": "ZeroCenteredGatedNorm", "layernorm_type": "pre_post", "gated_attention": True,
    "linear_attention_type": "Qwen3NextGatedDeltaNet", "full_attention_layers": [1, 4], "linear_key_head_dim": K_DIM,
    "linear_value_head_dim": V_DIM, "linear_conv_kernel_dim": KERNEL, "linear_num_key_heads": K_HEADS,
    "linear_num_value_heads": V_HEADS, "linear_gating_type": "gated_rmsnorm_sigmoid_zero_centered", "tie_word_embeddings": False,
}  # fmt: skip


def _norm(width: int, *, gated: bool) -> int:
    """A weight, and with a gate two maps through 16 elements."""
    return width + 2 * 16 * width * gated


def _total(*, gated: bool, sides: int, gate: bool) -> int:
    latent = (
        H * Q_RANK
        + Q_RANK * HEADS * (NOPE + ROPE)
        + H * (RANK + ROPE)
        + RANK * HEADS * (NOPE + VALUE)
        + HEADS * VALUE * H
    )
    latent += H * HEADS * VALUE * gate + _norm(Q_RANK, gated=gated) + _norm(RANK, gated=gated)
    keys, values = K_HEADS * K_DIM, V_HEADS * V_DIM
    channels = 2 * keys + values
    delta = H * (channels + values) + H * 2 * V_HEADS + values * H + channels * KERNEL + 2 * V_HEADS + V_DIM
    dense, sparse = 3 * H * INNER, EXPERTS * 3 * H * EXPERT + 3 * H * EXPERT + H * EXPERTS
    norms = sides * _norm(H, gated=gated)
    return 2 * latent + 3 * delta + dense + 4 * sparse + 5 * norms + _norm(H, gated=gated) + 2 * VOCABULARY * H


@pytest.mark.parametrize(
    ("keys", "total"),
    [
        ({}, _total(gated=True, sides=4, gate=True)),
        ({"layernorm_type": "pre"}, _total(gated=True, sides=2, gate=True)),
        ({"norm_type": "ZeroCenteredRMSNorm"}, _total(gated=False, sides=4, gate=True)),
        ({"gated_attention": False}, _total(gated=True, sides=4, gate=False)),
    ],
)
def test_it_has_the_parameters_of_its_class(keys: dict[str, Any], total: int) -> None:
    model, _ = import_config(CONFIG | keys, name="giga")
    assert sum(parameters(model).values()) == total


def test_two_layers_keep_latent_vectors_and_three_keep_states() -> None:
    model, _ = import_config(CONFIG, name="giga")
    found = cache_bytes(model, 100, Formats())
    assert found.growing == 2 * 100 * (RANK + ROPE) * 2
    channels = 2 * K_HEADS * K_DIM + V_HEADS * V_DIM
    assert found.state == 3 * (V_HEADS * K_DIM * V_DIM * 4 + channels * KERNEL * 2)


def test_a_list_of_kinds_says_the_same_as_the_numbers_of_full_layers() -> None:
    kinds = ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"]
    named = {key: value for key, value in CONFIG.items() if key != "full_attention_layers"} | {"layer_types": kinds}
    assert import_config(named, name="giga")[0].blocks == import_config(CONFIG, name="giga")[0].blocks


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"norm_type": "LayerNorm"}, "norm_type"),
        ({"layernorm_type": "post"}, "layernorm_type"),
        ({"full_attention_layers": [1, 9]}, "numbers below 5"),
        ({"linear_gating_type": "sigmoid_gate"}, "linear_gating_type"),
        ({"linear_attention_type": "Mamba"}, "linear_attention_type"),
        ({"use_shared_expert_sigmoid": True}, "shared expert"),
    ],
)
def test_what_the_class_does_otherwise_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(KvcalcError) as refused:
        import_config(CONFIG | keys, name="giga")
    assert said in str(refused.value)
