"""Mistral's own ``params.json``, read by the names that transformers gives its keys.

Source: vLLM 0.32, ``transformers_utils/configs/mistral.py``, and mistral-inference's arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvcalc.core.errors import UnsupportedError

__all__ = ["is_mistral_params", "renamed"]

_TEXT = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "norm_eps": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings",
}
_EXPERTS = {
    "expert_hidden_dim": "moe_intermediate_size",
    "first_k_dense_replace": "first_k_dense_replace",
    "num_expert_groups": "n_group",
    "num_expert_groups_per_tok": "topk_group",
    "num_experts": "n_routed_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
    "route_every_n": "moe_layer_freq",
    "routed_scale": "routed_scaling_factor",
}
# No model comes near; a larger number is a broken or hostile file.
_LARGEST = 10**6
# What describes neither layers nor formats, or is described elsewhere.
_LEFT_OUT = ("llama_4_scaling", "max_seq_len", "moe", "multimodal", "rope_theta", "vision_encoder", "yarn")


def is_mistral_params(data: Mapping[str, Any]) -> bool:
    """Return whether a mapping is Mistral's ``params.json``: sizes by Mistral's keys and no ``model_type``."""
    sizes = [data.get(key) for key in ("dim", "n_layers", "n_heads")]
    return "model_type" not in data and all(type(size) is int and 0 < size <= _LARGEST for size in sizes)


def renamed(data: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return the config that transformers would have of such a model.

    Args:
        data: the file's mapping.
        where: the file, for messages.

    Raises:
        UnsupportedError: a quantisation or an audio encoder that has no counterpart.
    """
    text = {_TEXT.get(key, key): value for key, value in data.items() if key not in _LEFT_OUT}
    text.setdefault("tie_word_embeddings", False)
    text.setdefault("max_position_embeddings", data.get("max_seq_len") or 128_000)
    text |= _windows(data) | _kind(data)
    quantised = text.pop("quantization", None)
    if isinstance(quantised, Mapping) and quantised:
        text["quantization_config"] = _quantisation(quantised, where)
    media = data.get("multimodal") or {}
    if isinstance(media, Mapping) and media.get("whisper_model_args"):
        raise UnsupportedError(
            "an audio encoder in params.json is not known to kvcalc", where=where, hint="give the model's config.json"
        )
    seen = data.get("vision_encoder") or (media.get("vision_encoder_args") if isinstance(media, Mapping) else None)
    return _with_tower(text, seen) if isinstance(seen, Mapping) else text


def _windows(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the window by transformers' keys; a list repeats over the layers, null standing for all tokens."""
    windows = data.get("sliding_window")
    if not isinstance(windows, list):
        return {"sliding_window": windows}
    repeats = data["n_layers"] // max(len(windows), 1)
    kinds = ["full_attention" if window is None else "sliding_attention" for window in windows] * repeats
    return {"sliding_window": next((window for window in windows if window), None), "layer_types": kinds}


def _kind(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of the text model, and the keys of its experts."""
    experts = data.get("moe")
    if not isinstance(experts, Mapping):
        return {"model_type": "mistral4" if data.get("qk_nope_head_dim") else "mistral"}
    if experts.get("num_shared_experts"):
        return {"model_type": "deepseek_v3"} | {_EXPERTS[key]: experts[key] for key in _EXPERTS if key in experts}
    counts = {
        "num_local_experts": experts.get("num_experts"),
        "num_experts_per_tok": experts.get("num_experts_per_tok"),
    }
    return {"model_type": "mixtral"} | counts


def _quantisation(quantised: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    if quantised.get("qformat_weight") == "fp8_e4m3":
        dynamic = quantised.get("qscheme_act") == "NO_SCALES"
        return {"quant_method": "fp8", "activation_scheme": "dynamic" if dynamic else "static"}
    if str(quantised.get("quant_method", "")).lower().replace("_", "-") == "compressed-tensors":
        return {**quantised, "quant_method": "compressed-tensors"}
    raise UnsupportedError("a quantization of params.json that is not known to kvcalc", where=where)


def _with_tower(text: dict[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a model that sees through Pixtral's tower, with Mistral's merger or LLaVA's map."""
    tower = {"model_type": "pixtral", **seen}
    merge = seen.get("spatial_merge_size")
    merged = merge if type(merge) is int else 1
    bias = bool(seen.get("adapter_bias", merged == 1))
    wrapper = {"vision_config": tower, "text_config": text, "multimodal_projector_bias": bias}
    if merged > 1:
        return {"model_type": "mistral3", "spatial_merge_size": merged, **wrapper, **_outer(text)}
    return {"model_type": "llava", "vision_feature_layer": -1, **wrapper, **_outer(text)}


def _outer(text: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that a wrapper decides for its text model."""
    keys = ("tie_word_embeddings", "quantization_config", "dtype")
    return {key: text[key] for key in keys if key in text}
