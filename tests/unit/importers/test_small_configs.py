"""Architectures without a published count at hand: small configs whose matrices, norms and caches are added up by hand.

Every config has hidden size 64, eight query heads of 16, two KV heads, a vocabulary of 1,000 and its table and head apart.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.model import Full, ModelProfile, Sliding
from kvcalc.core.workload import Formats
from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.parameters import parameters
from kvcalc.importers.hugging_face import import_config

H, Q, KV, D = 64, 128, 32, 16
ENDS = 2 * 1000 * H + H  # table, head, last norm
ATTENTION = H * (Q + 2 * KV) + Q * H
TOKEN = 2 * KV * 2  # bytes a layer keeps of a token
SIZES = {
    "hidden_size": H, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": D, "vocab_size": 1000,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip


def _model(model_type: str, layers: int, **keys: Any) -> ModelProfile:
    return import_config({"model_type": model_type, "num_hidden_layers": layers} | SIZES | keys, name="m")[0]


def _count(model: ModelProfile) -> int:
    return sum(parameters(model).values())


def _growing(model: ModelProfile, tokens: int) -> int:
    return cache_bytes(model, tokens, Formats()).growing


EXPERTS = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2}
# eight gated experts of 24 and their router
MIXTURE = 8 * 3 * H * 24 + 8 * H


def test_flint_has_sinks_norms_of_heads_and_an_ungated_shared_expert() -> None:
    model = _model("flint", 9, attention_bias=False, intermediate_size=48, moe_intermediate_size=24, sliding_window=32,
                   shared_expert_intermediate_size=40, decoder_sparse_step=1, mlp_only_layers=[], **EXPERTS)  # fmt: skip
    sparse = sum(block.mlp is not None and block.mlp.kind == "mixture" for block in model.blocks)
    norms = 2 * H + 2 * D + 8
    assert _count(model) == ENDS + 9 * (ATTENTION + norms) + sparse * (MIXTURE + 3 * H * 40) + (9 - sparse) * 3 * H * 48
    # the first two, the last, and every fourth from the second on see everything
    full = [index for index, block in enumerate(model.blocks) if isinstance(block.mixers[0], Full)]
    assert full == [0, 1, 5, 8]
    assert _growing(model, 1000) == TOKEN * (4 * 1000 + 5 * 32)


def test_command_mixtures_begin_with_dense_layers_and_see_everything_in_each_last_layer_of_a_pattern() -> None:
    model = _model("cohere2_moe", 8, attention_bias=False, intermediate_size=24, first_k_dense_replace=2, sliding_window=32,
                   prefix_dense_sliding_window_pattern=1, prefix_dense_intermediate_size=48, sliding_window_pattern=3,
                   num_shared_experts=2, **EXPERTS)  # fmt: skip
    shared = 3 * H * 24 * 2
    assert _count(model) == ENDS + 8 * (ATTENTION + H) + 2 * 3 * H * 48 + 6 * (MIXTURE + shared)
    windows = [isinstance(block.mixers[0], Sliding) for block in model.blocks]
    assert windows == [False, False, True, True, False, True, True, False]


@pytest.mark.parametrize(
    ("architecture", "normalised", "norms"),
    [
        ("BailingMoeForCausalLM", None, 0),
        ("BailingMoeV2ForCausalLM", False, 0),
        ("BailingMoeV2ForCausalLM", True, 2 * D),
    ],
)
def test_ling_begins_with_dense_layers_and_may_normalise_queries_and_keys(
    architecture: str, *, normalised: bool | None, norms: int
) -> None:
    keys = {} if normalised is None else {"use_qk_norm": normalised}
    model = _model("bailing_moe", 4, architectures=[architecture], use_bias=False, use_qkv_bias=True, intermediate_size=48,
                   moe_intermediate_size=24, first_k_dense_replace=1, num_shared_experts=2, num_experts=8, num_experts_per_tok=2,
                   norm_topk_prob=True, **keys)  # fmt: skip
    layer = ATTENTION + Q + 2 * KV + 2 * H + norms
    assert _count(model) == ENDS + 4 * layer + 3 * H * 48 + 3 * (MIXTURE + 3 * H * 24 * 2)


@pytest.mark.parametrize(("post", "norms"), [(True, 4), (False, 2)])
def test_hyperclova_has_further_norms_unless_they_are_switched_off(*, post: bool, norms: int) -> None:
    model = _model("hyperclovax", 3, intermediate_size=48, use_post_norm=post, attention_bias=False, mlp_bias=False)
    assert _count(model) == ENDS + 3 * (ATTENTION + 3 * H * 48 + norms * H)


def _searched(*entries: tuple[dict[str, Any], dict[str, Any]], **keys: Any) -> ModelProfile:
    configs = [{"attention": attention, "ffn": ffn} for attention, ffn in entries]
    return _model(
        "nemotron-nas", len(configs), block_configs=configs, **{"attention_bias": False, "mlp_bias": False} | keys
    )


def test_searched_layers_are_what_each_entry_says() -> None:
    """Attention or MLP left out, a square matrix in its place, groups and widths of each layer's own."""
    model = _searched(
        ({"n_heads_in_group": 4}, {"ffn_mult": 1.5}),
        ({"n_heads_in_group": 8}, {"intermediate_size": 40}),
        ({"no_op": True}, {"replace_with_linear": True}),
        ({"replace_with_linear": True}, {"no_op": True}),
        ({"no_op": True}, {"no_op": True}),
    )
    # two thirds of 1.5 x 64, rounded up to 256
    first = ATTENTION + 3 * H * 256 + 2 * H
    second = H * (Q + 2 * D) + Q * H + 3 * H * 40 + 2 * H
    assert _count(model) == ENDS + first + second + 2 * (H * H + H)
    assert _growing(model, 1000) == 1000 * (TOKEN + 2 * D * 2)
    assert [len(block.mixers) for block in model.blocks] == [1, 1, 0, 0, 0]


@pytest.mark.parametrize(("mult", "width"), [(6.0, 256), (6.03, 512), (12.0, 512), (12.1, 768)])
def test_a_searched_width_is_rounded_up_to_256(mult: float, width: int) -> None:
    plain, found = (_searched(({"no_op": True}, ffn)) for ffn in ({"no_op": True}, {"ffn_mult": mult}))
    assert _count(found) - _count(plain) == 3 * H * width + H


def test_biases_of_searched_layers_stand_where_the_layer_has_the_part() -> None:
    entries = [
        ({"n_heads_in_group": 4}, {"intermediate_size": 40}),
        ({"replace_with_linear": True}, {"no_op": True}),
        ({"no_op": True}, {"replace_with_linear": True}),
    ]
    plain, biased = _searched(*entries), _searched(*entries, attention_bias=True, mlp_bias=True)
    assert _count(biased) - _count(plain) == (Q + 2 * KV + H) + (2 * 40 + H) + H


def test_sparse_and_full_layers_of_minimax_keep_different_things() -> None:
    kinds = ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"]
    model = _model("minimax_m3_vl_text", 3, layer_types=kinds, mlp_layer_types=["dense", "sparse", "sparse"], intermediate_size=24,
                   dense_intermediate_size=48, shared_intermediate_size=40, index_n_heads=4, index_head_dim=8, index_topk_blocks=2,
                   index_block_size=16, index_local_blocks=1, **EXPERTS)  # fmt: skip
    layer = ATTENTION + 2 * H + 2 * D
    # the indexer: queries of four heads, one key, and a norm over each
    indexer = H * 4 * 8 + H * 8 + 2 * 8
    assert _count(model) == ENDS + 3 * layer + 2 * indexer + 3 * H * 48 + 2 * (MIXTURE + 3 * H * 40)
    assert _growing(model, 1000) == 1000 * (3 * TOKEN + 2 * 8 * 2)
    sparse = model.blocks[1].mixers[0]
    assert isinstance(sparse, Full)
    assert sparse.indexer is not None
    assert sparse.indexer.top_k == 2 * 16


def test_hyper_connections_mix_as_many_streams_as_the_config_says() -> None:
    """Before and after attention and MLP, streams x streams weights of the hidden size each, and at the end once more."""
    path = Path(__file__).parents[2] / "conformance" / "transformers_types.json"
    like = json.loads(path.read_text(encoding="utf-8"))["glm_moe_dsa"]["config"] | {"model_type": "hy_v4"}
    counts = [_count(import_config(like | {"hc_mult": streams}, name="m")[0]) for streams in (2, 4)]
    hidden, layers = like["hidden_size"], like["num_hidden_layers"]
    each, last = 2 * 2 * (16 - 4) * hidden + 2 * 2 * (4 - 2), (16 - 4) * hidden + (4 - 2)
    assert counts[1] - counts[0] == layers * each + last


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        ({"type": "linear", "factor": 2.0}, 8192),
        ({"rope_type": "dynamic", "factor": 2.5}, 10_240),
        ({"rope_type": "dynamic", "factor": 1.0}, None),
        ({"rope_type": "yarn", "factor": 2.0}, None),
    ],
)
def test_linear_and_dynamic_scaling_stretch_the_positions(scaling: dict[str, Any], positions: int | None) -> None:
    model = _model("llama", 2, intermediate_size=48, rope_scaling=scaling)
    assert (model.context_limit, model.rotary_positions) == (4096, positions)
