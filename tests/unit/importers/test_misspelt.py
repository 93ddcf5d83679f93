"""A key that is misspelt, or said twice in contradiction, never changes an answer without a word."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvcalc.core.errors import KvcalcError, ProfileError, UnsupportedError
from kvcalc.importers.hugging_face import import_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvcalc.core.model import ModelProfile

_LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 64,
    "num_key_value_heads": 2, "num_hidden_layers": 4, "vocab_size": 100, "max_position_embeddings": 4096,
    "tie_word_embeddings": True, "attention_bias": True, "torch_dtype": "float16",
    "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
}  # fmt: skip
_WINDOWED = {
    **_LLAMA, "model_type": "gemma3_text", "sliding_window": 512,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
}  # fmt: skip
_WRAPPED = {"model_type": "gemma3", "text_config": _WINDOWED, "tie_word_embeddings": False}
_MIXTURE = {
    **_LLAMA, "model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "decoder_sparse_step": 2, "mlp_only_layers": [3],
}  # fmt: skip
_LATENT = {
    **_LLAMA, "model_type": "deepseek_v3", "num_key_value_heads": 4, "kv_lora_rank": 48, "q_lora_rank": 96, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24, "v_head_dim": 40, "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 3,
    "moe_intermediate_size": 32, "first_k_dense_replace": 2,
}  # fmt: skip
_HYBRID = {
    **_LLAMA, "model_type": "qwen3_next", "decoder_sparse_step": 1, "full_attention_interval": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
    "linear_num_value_heads": 4, "linear_value_head_dim": 24, "linear_conv_kernel_dim": 3, "num_experts": 6,
    "num_experts_per_tok": 3, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
}  # fmt: skip
_RECURRENT = {
    "model_type": "mamba", "hidden_size": 128, "num_hidden_layers": 3, "vocab_size": 100, "state_size": 8, "conv_kernel": 3,
    "expand": 3, "intermediate_size": 384, "use_conv_bias": True, "time_step_rank": 5, "use_bias": True, "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
_CONFIGS = {
    "llama": _LLAMA, "windowed": _WINDOWED, "wrapped": _WRAPPED, "mixture": _MIXTURE, "latent": _LATENT, "hybrid": _HYBRID,
    "recurrent": _RECURRENT,
}  # fmt: skip
# What people write instead.
_SYNONYMS = {
    "num_key_value_heads": (
        "n_kv_heads", "num_kv_heads", "kv_heads", "n_head_kv", "nHeadKV", "numKeyValueHeads", "num_heads_kv",
        "number_of_key_value_heads", "num_keyvalue_heads",
    ),
    "head_dim": ("head_size", "head_dims", "d_head", "headdim", "attention_head_size", "head_dimension"),
    "sliding_window": ("slidingWindow", "window", "window_size", "attention_window", "sliding_window_len"),
    "layer_types": ("layer_type", "types_of_layers", "layerTypes"),
    "quantization_config": ("quant_config", "quantisation_config", "quantization_cfg", "quantize_config"),
    "tie_word_embeddings": ("tie_embeddings", "tied_embeddings", "tie_weights"),
    "num_experts_per_tok": ("experts_per_token", "num_experts_per_token"),
    "num_experts": ("n_experts", "experts"),
    "num_hidden_layers": ("n_layers", "num_layers", "layers"),
    "num_attention_heads": ("n_heads", "num_heads"),
    "intermediate_size": ("ffn_dim", "intermediate_dim", "ffn_hidden_size"),
}  # fmt: skip


def _misspelt(key: str) -> Iterator[str]:
    """Yield a key with a letter lost, doubled, swapped or changed, in other case, and as others call it."""
    for place in range(len(key)):
        before, letter, after = key[:place], key[place], key[place + 1 :]
        yield before + (after, letter * 2 + after, f"q{after}", after[:1] + letter + after[1:])[place % 4]
    yield from (key.upper(), key.title(), key.replace("_", "-"), key.replace("_", ""), f"{key} ", f"{key}s")
    yield from _SYNONYMS.get(key, ())


def _essence(model: ModelProfile) -> dict[str, Any]:
    return {name: value for name, value in vars(model).items() if name not in ("notes", "sources")}


def _keys(data: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in data.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from _keys(value, (*path, key))


def _renamed(data: Mapping[str, Any], path: tuple[str, ...], name: str) -> dict[str, Any]:
    first, *rest = path
    if not rest:
        return {name if key == first else key: value for key, value in data.items()}
    return {key: _renamed(value, tuple(rest), name) if key == first else value for key, value in data.items()}


def _silent_changes(config: Mapping[str, Any], path: tuple[str, ...], names: Iterator[str] | list[str]) -> list[str]:
    """Return the names of a key under which a config means something else and nobody is told."""
    essence = _essence(import_config(config, name="m")[0])
    silent = []
    for name in names:
        if name in _at(config, path[:-1]):
            continue
        try:
            model, _ = import_config(_renamed(config, path, name), name="m")
        except KvcalcError:
            continue
        if _essence(model) != essence and not any(path[-1] in note for note in model.notes):
            silent.append(name)
    return silent


def _at(data: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    for key in path:
        data = data[key]
    return data


@pytest.mark.slow
@pytest.mark.parametrize("name", _CONFIGS)
def test_no_misspelt_key_changes_an_answer_without_a_word(name: str) -> None:
    config = _CONFIGS[name]
    assert not import_config(config, name="m")[0].notes or name == "wrapped"
    silent = {path: found for path in _keys(config) if (found := _silent_changes(config, path, _misspelt(path[-1])))}
    assert silent == {}


@pytest.mark.parametrize(
    ("changes", "meant"),
    [
        ({"num_key_value_heads": None, "num_key_value_head": 2}, "num_key_value_heads"),
        ({"head_dim": None, "head_size": 64}, "head_dim"),
        ({"quantization_config": None, "quant_config": {"bits": 4}}, "quantization_config"),
        ({"sliding_windw": 512}, "sliding_window"),
        ({"layertypes": ["sliding_attention"] * 4}, "layer_types"),
    ],
)
def test_the_key_that_is_meant_is_named(changes: dict[str, Any], meant: str) -> None:
    config = {key: value for key, value in (_LLAMA | changes).items() if value is not None}
    with pytest.raises(ProfileError) as refused:
        import_config(config, name="m")
    assert refused.value.hint.startswith(f"did you mean {meant}?")


@pytest.mark.parametrize(
    "extra",
    [
        {"num_kv_heads": 2}, {"n_head_kv": 2}, {"head_dims": None}, {"top_k": 50}, {"sliding_window": 4096},
        {"custom_head_note": "x"}, {"hidden_act": "silu"}, {"mlp_bias": False},
    ],
)  # fmt: skip
def test_keys_that_say_nothing_else_are_let_pass(extra: dict[str, Any]) -> None:
    assert _essence(import_config(_LLAMA | extra, name="m")[0]) == _essence(import_config(_LLAMA, name="m")[0])


def test_what_a_class_gives_is_told_in_every_answer() -> None:
    config = {key: value for key, value in _LLAMA.items() if key not in ("num_key_value_heads", "tie_word_embeddings")}
    (note,) = import_config(config, name="m")[0].notes
    assert "num_key_value_heads = 4" in note
    assert "tie_word_embeddings = false" in note
    assert note.startswith("left out by the config")


@pytest.mark.parametrize(
    ("config", "note"),
    [
        (
            _WRAPPED,
            "tie_word_embeddings is false and text_config.tie_word_embeddings is true: tie_word_embeddings holds",
        ),
        (
            {**_WRAPPED, "hidden_size": 999, "tie_word_embeddings": True},
            "hidden_size is 999 and text_config.hidden_size is 128: text_config.hidden_size holds",
        ),
        (
            {**_HYBRID, "layer_types": ["full_attention", "linear_attention", "linear_attention", "linear_attention"]},
            "layer_types does not repeat as full_attention_interval = 2 says: layer_types holds",
        ),
    ],
)
def test_what_is_said_twice_in_contradiction_is_told(config: dict[str, Any], note: str) -> None:
    assert note in import_config(config, name="m")[0].notes


def test_an_order_that_agrees_with_its_period_is_not_told() -> None:
    kinds = ["linear_attention", "full_attention"] * 2
    assert import_config({**_HYBRID, "layer_types": kinds}, name="m")[0].notes == ()


def test_the_rank_of_time_steps_is_read_by_its_name() -> None:
    """transformers' MambaConfig calls it ``time_step_rank``."""
    sizes = [
        import_config({**_RECURRENT, "time_step_rank": rank}, name="m")[0].blocks[0].mixers[0].matrix_parameters
        for rank in (5, 6)
    ]
    assert sizes[1] - sizes[0] == 2 * 3 * 128  # one row more of x_proj, one column more of dt_proj


def test_a_config_with_more_keys_than_any_model_is_refused() -> None:
    with pytest.raises(ProfileError, match="more than 2,000 keys"):
        import_config(_LLAMA | {f"key{number}": number for number in range(2001)}, name="m")


_TRUTH = os.environ.get("KVCALC_TRUTH", "")
_REAL = [
    path
    for folder in ("configs", "transformers_types/configs", "transformers_types/real")
    for path in sorted(Path(_TRUTH, folder).glob("*.json"))
] if _TRUTH else []  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not _TRUTH, reason="needs the full truth: KVCALC_TRUTH")
def test_no_real_config_is_refused_for_its_spelling() -> None:
    refused = {}
    for path in _REAL:
        try:
            import_config(json.loads(path.read_text()), name="m")
        except UnsupportedError:
            continue
        except ProfileError as error:
            refused[path.name] = error.what
    assert {name: what for name, what in refused.items() if "no key that is known" in what} == {}


@pytest.mark.slow
@pytest.mark.skipif(not _TRUTH, reason="needs the full truth: KVCALC_TRUTH")
def test_no_misspelt_key_of_a_real_config_changes_an_answer_without_a_word() -> None:
    drawn = random.Random(0)  # noqa: S311  no secret
    silent = {}
    for path in drawn.sample(_REAL, 30):
        config = json.loads(path.read_text())
        try:
            import_config(config, name="m")
        except KvcalcError:
            continue
        keys = [key for key in _keys(config) if "." not in key[-1]]  # names of modules are no keys
        for key in drawn.sample(keys, min(8, len(keys))):
            names = list(dict.fromkeys(_misspelt(key[-1])))
            drawn.shuffle(names)
            if found := _silent_changes(config, key, names[:5]):
                silent[path.name, *key] = found
    assert silent == {}
