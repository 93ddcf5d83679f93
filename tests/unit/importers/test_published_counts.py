"""Architectures whose class transformers lacks or keeps elsewhere: parameters and bytes of a token against published models.

Totals are those that the models' own pages and checkpoints state, or sums by hand where they state none; bytes of a token are layers
times both of keys and values times KV heads times head width, in 16 bits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.workload import Formats
from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.parameters import active_parameters, parameters
from kvcalc.importers.families import find_rule, known_types
from kvcalc.importers.hugging_face import import_config

# model: config, parameters, bytes of a token
MODELS: dict[str, tuple[dict[str, Any], int, int]] = {
    "dbrx-base": (
        {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352, "attn_config": {"kv_n_heads": 8},
         "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
        131_596_523_520, 40 * 2 * 8 * 128 * 2,
    ),
    "deepseek-moe-16b-base": (
        {"model_type": "deepseek", "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
         "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
         "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1, "vocab_size": 102400},
        16_375_728_128, 28 * 2 * 16 * 128 * 2,
    ),
    "nanochat-d20": (
        {"model_type": "nanochat", "hidden_size": 1280, "num_hidden_layers": 20, "num_attention_heads": 10, "num_key_value_heads": 10,
         "vocab_size": 65536, "intermediate_size": 5120},
        560_988_160, 20 * 2 * 10 * 128 * 2,
    ),
    "bitnet-b1.58-2b-4t": (
        {"model_type": "bitnet", "hidden_size": 2560, "num_hidden_layers": 30, "num_attention_heads": 20, "num_key_value_heads": 5,
         "intermediate_size": 6912, "vocab_size": 128256, "tie_word_embeddings": True},
        2_412_820_480, 30 * 2 * 5 * 128 * 2,
    ),
    "smollm3-3b": (
        {"model_type": "smollm3", "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4,
         "intermediate_size": 11008, "vocab_size": 128256, "tie_word_embeddings": True},
        3_075_098_624, 36 * 2 * 4 * 128 * 2,
    ),
    "mpt-7b": (
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4, "vocab_size": 50432, "no_bias": True},
        6_649_286_656, 32 * 2 * 32 * 128 * 2,
    ),
    "qwen-7b": (
        {"model_type": "qwen", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 22016,
         "vocab_size": 151936, "kv_channels": 128},
        7_721_324_544, 32 * 2 * 32 * 128 * 2,
    ),
    "qwen-14b": (
        {"model_type": "qwen", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40, "intermediate_size": 27392,
         "vocab_size": 152064, "kv_channels": 128},
        14_167_290_880, 40 * 2 * 40 * 128 * 2,
    ),
    "chatglm3-6b": (  # the page's 6,243,584,032 count 32 frequencies of the rotary positions
        {"model_type": "chatglm", "hidden_size": 4096, "num_layers": 28, "num_attention_heads": 32, "ffn_hidden_size": 13696,
         "padded_vocab_size": 65024, "multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128,
         "add_qkv_bias": True, "add_bias_linear": False, "rmsnorm": True, "seq_length": 32768},
        6_243_584_000, 28 * 2 * 2 * 128 * 2,
    ),
    "glm-4-9b": (  # likewise 9,399,951,392
        {"model_type": "chatglm", "hidden_size": 4096, "num_layers": 40, "num_attention_heads": 32, "ffn_hidden_size": 13696,
         "padded_vocab_size": 151552, "multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128,
         "add_qkv_bias": True, "add_bias_linear": False, "rmsnorm": True, "seq_length": 131072},
        9_399_951_360, 40 * 2 * 2 * 128 * 2,
    ),
    "baichuan-7b": (
        {"model_type": "baichuan", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008,
         "vocab_size": 64000, "max_position_embeddings": 4096},
        7_000_559_616, 32 * 2 * 32 * 128 * 2,
    ),
    "baichuan2-13b": (
        {"model_type": "baichuan", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40, "intermediate_size": 13696,
         "vocab_size": 125696, "model_max_length": 4096},
        13_896_668_160, 40 * 2 * 40 * 128 * 2,
    ),
    "internlm2-7b": (
        {"model_type": "internlm2", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "intermediate_size": 14336, "vocab_size": 92544, "bias": False},
        7_737_708_544, 32 * 2 * 8 * 128 * 2,
    ),
    "internlm-7b": (  # biases on all four projections
        {"model_type": "internlm", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008,
         "vocab_size": 103168, "bias": True},
        2 * 103168 * 4096 + 32 * (4 * (4096**2 + 4096) + 3 * 4096 * 11008 + 2 * 4096) + 4096, 32 * 2 * 32 * 128 * 2,
    ),
    "dots.llm1": (  # 142,774,381,696 with the routers' 61 x 128 corrections, which are buffers
        {"model_type": "dots1", "hidden_size": 4096, "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 32,
         "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 128, "n_shared_experts": 2,
         "num_experts_per_tok": 6, "first_k_dense_replace": 1, "vocab_size": 152064, "head_dim": 128},
        142_774_381_696 - 61 * 128, 62 * 2 * 32 * 128 * 2,
    ),
    "minicpm-2b": (
        {"model_type": "minicpm", "hidden_size": 2304, "num_hidden_layers": 40, "num_attention_heads": 36, "num_key_value_heads": 36,
         "intermediate_size": 5760, "vocab_size": 122753, "tie_word_embeddings": True},
        2_724_880_896, 40 * 2 * 36 * 64 * 2,
    ),
    "m2m100-418m": ({"model_type": "m2m_100"}, 483_905_536, 12 * 2 * 16 * 64 * 2),
    "orion-14b": (  # layer norms with biases
        {"model_type": "orion", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40,
         "intermediate_size": 15360, "vocab_size": 84608},
        2 * 84608 * 5120 + 40 * (4 * 5120**2 + 3 * 5120 * 15360 + 4 * 5120) + 2 * 5120, 40 * 2 * 40 * 128 * 2,
    ),
    "persimmon-8b": (  # biases and layer norms everywhere, those of queries and keys over one head
        {"model_type": "persimmon", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 64, "intermediate_size": 16384,
         "vocab_size": 262144, "qk_layernorm": True},
        2 * 262144 * 4096
        + 36 * (4 * (4096**2 + 4096) + 2 * 4096 * 16384 + 16384 + 4096 + 4 * 4096 + 4 * 64)
        + 2 * 4096,
        36 * 2 * 64 * 64 * 2,
    ),
    "helium-1": (
        {"model_type": "helium", "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
         "head_dim": 128, "intermediate_size": 8192, "vocab_size": 64000, "tie_word_embeddings": True},
        64000 * 2048 + 28 * (2048 * (2 * 2048 + 2 * 1024) + 3 * 2048 * 8192 + 2 * 2048) + 2048, 28 * 2 * 8 * 128 * 2,
    ),
    "jetmoe-8b": (
        {"model_type": "jetmoe", "hidden_size": 2048, "num_hidden_layers": 24, "num_key_value_heads": 16, "num_attention_heads": 32,
         "kv_channels": 128, "intermediate_size": 5632, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
         "tie_word_embeddings": True},
        8_522_237_952, 24 * 2 * 16 * 128 * 2,
    ),
    "grok-1": (  # norms before and after attention and experts
        {"model_type": "grok-1", "hidden_size": 6144, "num_hidden_layers": 64, "num_attention_heads": 48, "num_key_value_heads": 8,
         "intermediate_size": 32768, "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 131072},
        2 * 131072 * 6144
        + 64 * (6144 * (2 * 6144 + 2 * 1024) + 8 * 3 * 6144 * 32768 + 8 * 6144 + 4 * 6144)
        + 6144,
        64 * 2 * 8 * 128 * 2,
    ),
    "zamba-7b-v1": (  # 76 Mamba layers; one attention and MLP of twice the width, used 13 times, each with a projection of its own
        {"model_type": "zamba", "hidden_size": 3712, "num_hidden_layers": 76, "num_attention_heads": 16, "intermediate_size": 14848,
         "vocab_size": 32000, "attention_hidden_size": 7424, "attention_head_dim": 464, "mamba_d_state": 16, "mamba_d_conv": 4,
         "mamba_expand": 2, "mamba_dt_rank": 232, "n_mamba_heads": 2},
        32000 * 3712 + 3712
        + 76 * (3712 * 14848 + 7424 * 5 + 7424 * (232 + 32) + 7424 * 232 + 7424 + 7424 * 16 + 7424 + 7424 * 3712 + 3712)
        + 3 * 7424**2 + 7424 * 3712 + 3 * 3712 * 14848 + 7424 + 3712
        + 13 * 3712**2,
        13 * 2 * 16 * 464 * 2,
    ),
    "xverse-7b": (
        {"model_type": "xverse", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32,
         "vocab_size": 100534},
        2 * 100534 * 4096 + 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 4096,
        32 * 2 * 32 * 128 * 2,
    ),
    "sdar-8b": (  # Qwen3-8B's sizes
        {"model_type": "sdar", "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
         "head_dim": 128, "num_hidden_layers": 36, "vocab_size": 151936, "tie_word_embeddings": False},
        8_190_735_360, 36 * 2 * 8 * 128 * 2,
    ),
    "sdar-30b-a3b": (  # Qwen3-30B-A3B's sizes
        {"model_type": "sdar_moe", "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
         "num_hidden_layers": 48, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
        30_532_122_624, 48 * 2 * 4 * 128 * 2,
    ),
    "llada2-mini": (
        {"model_type": "llada2_moe", "vocab_size": 157184, "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 20,
         "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 256, "num_shared_experts": 1,
         "num_experts_per_tok": 8, "moe_intermediate_size": 512, "first_k_dense_replace": 1, "use_bias": False, "use_qkv_bias": False},
        2 * 157184 * 2048 + 2048 + 20 * (2048 * 128 * (2 * 16 + 2 * 4) + 2 * 128 + 2 * 2048) + 3 * 2048 * 5120
        + 19 * (257 * 3 * 2048 * 512 + 256 * 2048),
        20 * 2 * 4 * 128 * 2,
    ),
    "longcat-flash-lite": (  # the tables of n-grams are 31.4 of its 68.5 billion parameters
        {"model_type": "longcat_flash_ngram", "hidden_size": 3072, "num_layers": 14, "num_attention_heads": 32, "vocab_size": 131072,
         "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
         "n_routed_experts": 256, "moe_topk": 12, "expert_ffn_hidden_size": 1024, "ffn_hidden_size": 6144, "zero_expert_num": 128,
         "ngram_vocab_size_ratio": 78, "emb_split_num": 4, "emb_neighbor_num": 4},
        2 * 131072 * 3072 + 3072 + sum(78 * 131072 + 2 * i + 1 for i in range(12)) * 256 + 12 * 256 * 3072
        + 14 * (2 * (3072 * 1536 + 1536 * 32 * 192 + 3072 * 576 + 512 * 32 * 256 + 32 * 128 * 3072 + 1536 + 512) + 4 * 3072
                + 2 * 3 * 3072 * 6144 + 256 * 3 * 3072 * 1024 + 384 * 3072),
        28 * 576 * 2,
    ),
    "minicpm-sala": (
        {"model_type": "minicpm_sala", "hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 32,
         "num_key_value_heads": 2, "head_dim": 128, "num_hidden_layers": 32, "vocab_size": 73448,
         "mixer_types": ["minicpm4", *["lightning-attn"] * 3], "lightning_nh": 32, "lightning_nkv": 32, "lightning_head_dim": 128,
         "use_output_gate": True, "use_output_norm": True, "attn_use_output_gate": True},
        2 * 73448 * 4096 + 4096 + 32 * (3 * 4096 * 16384 + 2 * 4096) + 8 * (3 * 4096**2 + 2 * 4096 * 256)
        + 24 * (5 * 4096**2 + 2 * 128 + 4096),
        8 * 2 * 2 * 128 * 2,
    ),
    "jet-nemotron": (
        {"model_type": "jet_nemotron", "hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12,
         "num_key_value_heads": 2, "num_hidden_layers": 4, "vocab_size": 1000, "tie_word_embeddings": True,
         "layer_types": ["jet", "attn", "jet", "jet"],
         "efficient_attention_config": {"jet": {"num_heads": 12, "head_dim": 96, "expand_v": 2.0, "conv_size": 4,
                                                "dconv_generator_reduction": 8}}},
        1000 * 1536 + 1536 + 4 * (3 * 1536 * 8960 + 2 * 1536) + 1536 * (2 * 1536 + 2 * 256) + 1536 + 2 * 256
        + 3 * (1536 * (2 * 1152 + 3 * 2304 + 2 * 12) + 1536 * 288 + 288 * 2304 * 4 + 2304 * 4 + 2 * 12 + 192),
        1 * 2 * 2 * 128 * 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_parameters_and_the_cache_that_were_published(name: str) -> None:
    config, total, token_bytes = MODELS[name]
    model, _ = import_config(config, name=name)
    assert sum(parameters(model).values()) == total
    found = cache_bytes(model, 1000, Formats())
    assert found.growing == 1000 * token_bytes


TYPES = Path(__file__).parents[2] / "conformance" / "transformers_types.json"
# Rules that neither a class of transformers nor a count above enters, each with the test that does.
HELD_ELSEWHERE = {
    "bailing_moe": "test_small_configs.py",
    "deci": "test_configs.py",
    "deepseek_ref": "the rule of deepseek_v4, by another name",
    "deepseek_v41_text": "test_deepseek_v41.py",
    "gigachat3_5": "test_gigachat.py",
    "minicpmv": "test_configs.py",
    "nemotron-nas": "test_small_configs.py",
    "openelm": "test_configs.py",
    "phi3small": "test_configs.py",
}


def _types(config: dict[str, Any]) -> set[str]:
    """The types named anywhere in a config."""
    inner = (value for value in config.values() if isinstance(value, dict))
    return {config.get("model_type", ""), *(kind for each in inner for kind in _types(each))}


def test_every_rule_is_entered_by_a_case() -> None:
    """A rule that nothing enters could count anything; types that share a rule share its cases."""
    cases = [case["config"] for case in json.loads(TYPES.read_text(encoding="utf-8")).values()]
    entered = set().union(*map(_types, [*cases, *(config for config, *_ in MODELS.values())])) & set(known_types())
    rules = {find_rule(kind) for kind in entered}
    alone = {kind for kind in known_types() if find_rule(kind) not in rules}
    assert {find_rule(kind) for kind in HELD_ELSEWHERE} == {find_rule(kind) for kind in alone}
    assert set(HELD_ELSEWHERE) <= alone


@pytest.mark.parametrize(
    ("name", "idle"),
    [
        ("dbrx-base", 40 * (16 - 4) * 3 * 6144 * 10752 + 100352 * 6144),
        ("deepseek-moe-16b-base", 27 * (64 - 6) * 3 * 2048 * 1408 + 102400 * 2048),
        ("jetmoe-8b", 24 * (8 - 2) * (3 * 2048 * 5632 + 2 * 2048 * 2048)),  # tied: its table is the head
    ],
)
def test_a_token_multiplies_by_all_but_the_experts_it_is_not_sent_to_and_the_embedding(name: str, idle: int) -> None:
    config, total, _ = MODELS[name]
    model, _ = import_config(config, name=name)
    assert active_parameters(model) == total - idle
