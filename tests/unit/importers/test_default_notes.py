"""What a config leaves out, and so its class or kvcalc decides, is told in every answer that it changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcalc.importers.hugging_face import import_config

CASES: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "conformance" / "transformers_types.json").read_text(encoding="utf-8")
)
# Types that the file above does not have.
_SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
    "vocab_size": 100, "max_position_embeddings": 512, "dtype": "bfloat16",
}  # fmt: skip
_BAMBA = {**_SMALL, "model_type": "bamba", "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_expand": 2}
_OTHERS = {"bamba": _BAMBA, "minimax": {**_SMALL, "model_type": "minimax", "num_local_experts": 2}}
_LISTS = ("layer_types", "layers_block_type", "attn_layer_indices")


def _notes(config: dict[str, Any]) -> str:
    return "; ".join(import_config(config, name="m")[0].notes)


def _without(name: str, **given: Any) -> dict[str, Any]:
    """Return the config of a class without its lists of layers, and with these keys."""
    whole = _OTHERS[name] if name in _OTHERS else CASES[name]["config"]
    config = {key: value for key, value in whole.items() if key not in _LISTS}
    return {**config, **given}


@pytest.mark.parametrize("missing", [{}, {"layer_types": None}])
def test_a_hybrid_without_its_list_of_layers_says_that_all_are_recurrent(missing: dict[str, Any]) -> None:
    config = _without("granitemoehybrid", **missing)
    assert f"layer_types = {config['num_hidden_layers']} mamba" in _notes(config)
    kinds = ["mamba"] * config["num_hidden_layers"]
    assert "layer_types" not in _notes({**config, "layer_types": kinds})


@pytest.mark.parametrize(
    ("name", "noted"),
    [
        ("bamba", "attn_layer_indices = 2 mamba"),
        ("deepseek_v4", "layer_types = "),
        ("gemma2", "layer_types = "),
        ("gemma4_text", "layer_types = "),
        ("granitemoe_swa", "layer_types = "),
        ("lfm3", "layer_types = "),
        ("minimax", "layer_types = 1 full_attention, 1 linear_attention"),
        ("olmo_hybrid", "layer_types = "),
        ("zamba2", "layers_block_type = "),
    ],
)
def test_an_order_that_the_class_alone_decides_is_noted(name: str, noted: str) -> None:
    config = _without(name)
    if name == "zamba2":
        config["num_hidden_layers"] = 54
    if name == "deepseek_v4":
        config.pop("compress_ratios", None)
    assert noted in _notes(config)


@pytest.mark.parametrize("name", ["qwen3_next", "llama", "mistral", "qwen2"])
def test_an_order_that_follows_from_other_keys_is_not_noted(name: str) -> None:
    assert "layer_types" not in _notes(_without(name, full_attention_interval=2) if "next" in name else _without(name))


_MISTRAL = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
    "vocab_size": 100, "head_dim": 16, "model_type": "mistral", "sliding_window": None, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_longest_context_that_the_class_gives_is_noted() -> None:
    noted = "left out by the config, so that the default of its class holds: max_position_embeddings = 131072"
    assert noted in _notes({**_MISTRAL, "dtype": "float16"})
    assert "max_position" not in _notes({**_MISTRAL, "max_position_embeddings": 4096})


def test_a_dtype_that_is_assumed_is_noted() -> None:
    config = {**_MISTRAL, "max_position_embeddings": 4096}
    assert _notes(config) == "the config names no dtype; bf16 is assumed"
    assert _notes({**config, "dtype": "float16"}) == _notes({**config, "torch_dtype": "float16"}) == ""


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}


@pytest.mark.parametrize(
    ("outer", "inner", "noted"),
    [
        ({"dtype": "float16"}, {"dtype": "float32"}, "dtype is float16 and text_config.dtype is float32: dtype holds"),
        ({"torch_dtype": "float16"}, {"dtype": "float32"}, "torch_dtype is float16 and text_config.dtype is float32"),
        ({"torch_dtype": "float16"}, {"dtype": "torch.float16"}, ""),
        (
            {"quantization_config": _GPTQ},
            {"quantization_config": {**_GPTQ, "bits": 8}},
            "quantization_config and text_config.quantization_config say different things: quantization_config holds",
        ),
        ({"quantization_config": _GPTQ, "quantization": {"bits": 8, "group_size": 64}}, {}, "and quantization say"),
        ({"quantization_config": _GPTQ, "quantization": _GPTQ}, {"quantization_config": _GPTQ}, ""),
    ],
)
def test_what_two_levels_say_of_formats_in_contradiction_is_noted(
    outer: dict[str, Any], inner: dict[str, Any], noted: str
) -> None:
    text = {**_MISTRAL, "max_position_embeddings": 4096, **inner}
    notes = _notes({"model_type": "mistral3", "text_config": text, "tie_word_embeddings": False, **outer})
    assert noted in notes
    assert ("holds" in notes) == bool(noted)


@pytest.mark.parametrize(
    ("name", "key", "noted"),
    [
        ("deepseek_v2", "first_k_dense_replace", "the default of its class holds: first_k_dense_replace = 0"),
        ("gpt2", "n_embd", "the defaults of its class stand in: n_embd = 768"),
        ("t5", "d_ff", "the default of its class holds: d_ff = 2048"),
        ("t5", "d_model", "the defaults of its class stand in: d_model = 512"),
    ],
)
def test_a_size_under_an_older_name_that_the_class_gives_is_noted(name: str, key: str, noted: str) -> None:
    config = CASES[name]["config"]
    assert key not in _notes(config)
    assert noted in _notes({other: value for other, value in config.items() if other != key})
