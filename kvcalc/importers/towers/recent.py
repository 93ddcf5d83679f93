"""Towers of 2026's document readers, robots and transcribers, with what leads from them to the text model.

Source: the classes of transformers 5.24.0, built without storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.importers.towers.bricks import attention, layers, linear, mlp, norm, patches, perceptron
from kvcalc.importers.towers.vision import grid, hidden_of, plain_layers

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.importers.config_reader import Config

__all__ = [
    "AUDIO", "VISION", "cosmos_edge", "deepseek_v41", "ernie", "fun_asr", "fuyu", "molmo2", "voxtral_realtime",
]  # fmt: skip


def _ernie(config: Config) -> int:
    """ERNIE 4.5 VL's tower: rotary positions, a norm at the end."""
    hidden = hidden_of(config)
    each = plain_layers_of(config, "depth")
    return patches(config, hidden, bias=False) + each + norm(hidden)


def plain_layers_of(config: Config, key: str) -> int:
    """Return the parameters of layers with biases and norms everywhere, whose number has another name."""
    hidden = hidden_of(config)
    each = 4 * linear(hidden, hidden) + mlp(hidden, config.integer("intermediate_size")) + norm(hidden, 2)
    return layers(config, each, key)


def ernie(_top: Config, tower: Config, text: int) -> int:
    """ERNIE 4.5 VL's resampler: patches merged in space, then in time."""
    wide = hidden_of(tower) * tower.integer("spatial_merge_size") ** 2
    frames = tower.integer("temporal_merge_size", default=2)
    spatial, temporal = perceptron(wide, wide, wide), perceptron(frames * wide, wide, wide)
    return spatial + temporal + norm(wide, 2) + linear(wide, text) + norm(text, bias=False)


def _granite_docling(config: Config) -> int:
    """Granite Docling's tower: SigLIP, and a connector of a coarse and a fine route with mergers of earlier layers."""
    hidden, out = hidden_of(config), config.integer("out_hidden_size")
    scale = config.integer("scale_factor")
    tapped = config.sequence("deepstack_visual_indexes", default=None)
    routes = (scale, scale // 2) if config.flag("use_fine_route") else (scale,)
    connector = norm(hidden) + 2 * norm(out) + out * out
    for fold in routes:
        wide = fold**2 * hidden
        connector += wide * out + len(tapped) * (norm(wide) + perceptron(wide, out, out))
    return patches(config, hidden) + grid(config) * hidden + plain_layers(config) + norm(hidden) + connector


def _cosmos_edge(config: Config) -> int:
    """Cosmos 3 Edge's tower: SigLIP-2 with as many positions as its config says."""
    hidden = hidden_of(config)
    return patches(config, hidden) + config.integer("num_patches") * hidden + plain_layers(config) + norm(hidden)


def cosmos_edge(top: Config, tower: Config, text: int) -> int:
    """Cosmos 3 Edge's merger of two-by-two patches."""
    wide = hidden_of(tower) * tower.integer("spatial_merge_size") ** 2
    return norm(hidden_of(tower)) + perceptron(wide, top.integer("projector_hidden_size"), text)


def _molmo2(config: Config) -> int:
    """Molmo 2's tower: a position for each patch, no norm at the end."""
    hidden = hidden_of(config)
    inner = config.integer("head_dim") * config.integer("num_attention_heads")
    if inner != hidden or config.integer("num_key_value_heads") != config.integer("num_attention_heads"):
        raise UnsupportedError("a Molmo 2 tower whose heads together are not as wide as its hidden state")
    return patches(config, hidden) + config.integer("num_position_embeddings") * hidden + plain_layers(config)


def molmo2(top: Config, _tower: Config, _text: int) -> int:
    """Molmo 2's adapter: patches pooled by attention, then a gated MLP."""
    own = top.child("adapter_config")
    hidden, width = own.integer("hidden_size"), own.integer("head_dim")
    seen = len(own.sequence("vision_feature_layer")) * hidden
    query, kv = own.integer("num_attention_heads"), own.integer("num_key_value_heads")
    bias, mlp_bias = own.flag("attention_bias", default=True), own.flag("mlp_bias", default=False)
    pooled = linear(seen, (query + 2 * kv) * width, bias=bias) + linear(query * width, hidden, bias=bias)
    inner, out = own.integer("intermediate_size"), own.integer("text_hidden_size")
    return pooled + 2 * linear(hidden, inner, bias=mlp_bias) + linear(inner, out, bias=False)


def _voxtral_realtime(config: Config) -> int:
    """Voxtral Realtime's causal encoder: two convolutions, rotary positions, gated MLPs; keys have no bias."""
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    heads = config.integer("head_dim") * config.integer("num_attention_heads")
    each = 2 * linear(hidden, heads) + hidden * heads + linear(heads, hidden)
    each += 2 * hidden * inner + linear(inner, hidden) + norm(hidden, 2, bias=False)
    front = linear(3 * config.integer("num_mel_bins"), hidden) + linear(3 * hidden, hidden)
    return front + layers(config, each) + norm(hidden, bias=False)


def voxtral_realtime(top: Config, tower: Config, text: int) -> int:
    """Voxtral Realtime's map over the frames of one token."""
    frames = top.integer("downsample_factor", default=4)
    return perceptron(frames * tower.integer("hidden_size"), text, text, bias=False)


def _fun_asr(config: Config) -> int:
    """Fun-ASR Nano's encoder: attention with a memory of neighbouring frames; the first layer reads stacked frames.

    Norms stand behind the layers that transcribe and behind those that predict times, which are the last ones.
    """
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    count, timed = config.integer("num_hidden_layers"), config.integer("num_timestamp_prediction_layers", least=0)
    wide = config.integer("num_mel_bins") * config.integer("num_stacked_frames")
    each = linear(hidden, hidden) + config.integer("fsmn_kernel_size") * hidden + mlp(hidden, inner) + norm(hidden)
    first = 3 * linear(wide, hidden) + norm(wide)
    last = {count - 1, count - timed - 1} & set(range(count))
    return count * each + first + (count - 1) * (3 * linear(hidden, hidden) + norm(hidden)) + norm(hidden, len(last))


def fun_asr(top: Config, tower: Config, text: int) -> int:
    """Fun-ASR Nano's map, and layers of its own in the text model's width."""
    own = top.child("adaptor_config")
    between = own.integer("projector_hidden_size")
    each = 4 * linear(text, text) + mlp(text, own.integer("intermediate_size")) + norm(text, 2)
    return perceptron(tower.integer("hidden_size"), between, text) + layers(own, each)


def fuyu(top: Config, text: int) -> int:
    """Fuyu's only tower: one map from the pixels of a patch."""
    pixels = top.integer("patch_size") ** 2 * top.integer("num_channels")
    return linear(pixels, text)


def _deepseek_v41(config: Config) -> int:
    """DeepSeek-V4.1's tower: biases on patches and attention, gated MLPs without, norms without."""
    hidden, patch = config.integer("hidden_size"), config.integer("patch_size", default=14)
    each = attention(hidden) + mlp(hidden, config.integer("intermediate_size"), bias=False, gated=True)
    each += norm(hidden, 2, bias=False)
    return linear(3 * patch * patch, hidden) + layers(config, each) + norm(hidden, bias=False)


def deepseek_v41(top: Config, tower: Config, text: int) -> int:
    """DeepSeek-V4.1's map over squares of patches, three vectors that frame an image, and routers' biases for it."""
    inner = top.child("text_config")
    biases = inner.integer("num_hidden_layers") * inner.integer("n_routed_experts")
    wide = tower.integer("hidden_size") * tower.integer("downsample_ratio", default=3) ** 2
    return perceptron(wide, text, text) + 3 * text + biases


VISION: dict[str, Callable[[Config], int]] = {
    "cosmos3_edge_vision": _cosmos_edge,
    "deepseek_v41_vision": _deepseek_v41,
    "ernie4_5_vl_moe_vision": _ernie,
    "granite_docling_vision": _granite_docling,
    "molmo2_vision": _molmo2,
}

AUDIO: dict[str, Callable[[Config], int]] = {
    "fun_asr_nano_encoder": _fun_asr,
    "voxtral_realtime_encoder": _voxtral_realtime,
}
