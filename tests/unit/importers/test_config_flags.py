"""What a flag of a config adds, for every type that has it: counted by hand from the sizes of a small config.

The configs are those of `transformers_types.json`, whose counts as they stand are held against transformers' classes; here one flag is
turned over. Letters: ``L`` layers, ``A`` those with attention, ``h`` hidden size, ``q`` and ``kv`` outputs of the query and of the key
projection, ``D`` head width, ``I`` inner width of the MLP; other words are keys of the config.
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.model import Full, Latent, Shared, Sliding
from kvcalc.cost.parameters import parameters
from kvcalc.importers.hugging_face import import_config

TYPES = Path(__file__).parents[2] / "conformance" / "transformers_types.json"
CASES: dict[str, Any] = json.loads(TYPES.read_text(encoding="utf-8"))

LATENT = "A*(q_lora_rank + kv_lora_rank + qk_rope_head_dim + h)"
COUNTED = (
    # biases of the projections: queries, keys and values, and the output where the class gives it one
    ("attention_bias", "A*(q + 2*kv + h)", "afmoe apertus arcee cohere cohere2 diffllama exaone falcon_h1 gemma gemma2 gemma3_text"),
    ("attention_bias", "A*(q + 2*kv + h)", "granite_swa granitemoe granitemoe_swa granitemoehybrid hunyuan_v1_dense hy_v3 iquestcoder"),
    ("attention_bias", "A*(q + 2*kv + h)", "jais2 lfm3 llama mellum olmo olmo2 olmo3 olmo_hybrid olmoe phimoe qwen3 qwen3_moe vaultgemma"),
    ("attention_bias", "A*(q + 2*kv)", "glm seed_oss internlm3 sarvam_moe solar_open recurrent_gemma"),
    ("use_qkv_bias", "A*(q + 2*kv)", "stablelm"),
    ("attention_out_bias", "A*h", "seed_oss"),
    ("attention_bias", "A*(2*q + 2*kv + h)", "qwen3_next qwen3_5_text"),  # a gate stands beside each query
    ("attention_bias", LATENT, "axk1 deepseek_v2 deepseek_v32 glm4_moe_lite glm_moe_dsa minicpm3 mistral4 youtu"),
    # a layer that reads another's cache has no keys and values of its own: 3 of 11 in Gemma 3n
    ("attention_bias", "8*(q + 2*kv + h) + 3*(q + h)", "gemma3n_text"),
    # one layer of six is global, with heads of twice the width
    ("attention_bias", "5*(q + 2*kv + h) + 2*q + 4*kv + h", "gemma4_text gemma4_unified_text"),
    # the global layer takes its values from the key projection: two heads of 64
    ("attention_k_eq_v", "-2*64*h", "gemma4_text gemma4_unified_text"),
    ("mlp_bias", "L*(2*I + h)", "cwm exaone falcon_h1 granite_swa iquestcoder llama minicpm3 seed_oss"),
    ("mlp_bias", "L*(I + h)", "arcee jais2"),  # no gate
    ("mlp_bias", "L*(2*I + h) + A*h", "internlm3"),  # the config's one word for the MLP and attention's output
    ("use_bias", "L*(q + 2*kv + h + 2*I + h)", "ernie4_5"),
    ("use_bias", "L*(q + 2*kv + h + I + h)", "starcoder2"),
    ("enable_bias", "L*(4*h + ffn_dim + h)", "opt"),
    ("bias", "L*(q + 2*D + h + ffn_hidden_size + h)", "falcon"),  # one key head
    ("projectors_bias", "L*h", "falcon_h1"),
    ("lm_head_bias", "vocab_size", "phimoe zaya"),
    # norms
    ("use_qk_norm", "A*(q + kv)", "cohere"),
    ("use_qk_norm", "A*2*D", "sarvam_moe"),
    ("qk_layernorm", "A*(q + kv)", "stablelm"),
    ("qk_layernorm", "A*4*D", "phi"),  # with a bias each
    ("use_sandwich_norm", "L*2*h", "lfm3"),
    ("use_parallel_residual", "-L*2*h", "stablelm"),  # MLP and attention share one norm
    ("parallel_attn", "-L*2*h", "falcon"),
    ("layer_norm_elementwise_affine", "L*4*h + 2*h", "opt"),
    ("_remove_final_layer_norm", "-2*h", "opt"),
    ("do_layer_norm_before", "2*h", "opt"),
    ("use_attention_gate", "A*h*num_attention_heads", "lfm3"),
    # convolutions and states
    ("conv_bias", "(L - A)*5*h", "lfm2_moe lfm3"),  # three inputs, the convolution, the output
    ("use_bias", "L*(2*I + h)", "mamba falcon_mamba"),
    ("use_conv_bias", "L*I", "mamba falcon_mamba"),
    ("use_bias", "L*(8192 + 10240 + 128 + h)", "mamba2"),  # gate, convolved channels, a step for each head
    ("use_conv_bias", "L*10240", "mamba2"),  # 8,192 inner channels, eight groups of two states of 128
)  # fmt: skip
ROWS = [(flag, formula, name) for flag, formula, names in COUNTED for name in names.split()]


def _sizes(config: dict[str, Any]) -> dict[str, int]:
    """The letters' values."""
    model, _ = import_config(config, name="m")
    heads, hidden = config.get("num_attention_heads", 1), model.hidden_size
    width = config.get("head_dim") or hidden // heads
    attention = sum(
        isinstance(mixer, Full | Sliding | Latent | Shared) for block in model.blocks for mixer in block.mixers
    )
    inner = config.get("intermediate_size", 0)
    return {key: value for key, value in config.items() if isinstance(value, int)} | {
        "L": model.layers,
        "A": attention,
        "h": hidden,
        "q": heads * width,
        "kv": config.get("num_key_value_heads", heads) * width,
        "D": width,
        "I": inner if isinstance(inner, int) else 0,
    }


def _count(config: dict[str, Any]) -> int:
    return sum(parameters(import_config(config, name="m")[0]).values())


@pytest.mark.parametrize(("flag", "formula", "name"), ROWS)
def test_a_flag_adds_what_its_class_has_then(flag: str, formula: str, name: str) -> None:
    off, on = deepcopy(CASES[name]["config"]), deepcopy(CASES[name]["config"])
    off[flag], on[flag] = False, True
    assert _count(on) - _count(off) == eval(formula, {}, _sizes(CASES[name]["config"]))  # noqa: S307
