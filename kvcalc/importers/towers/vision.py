"""Vision transformers by the ``model_type`` of their own config: patches, positions, layers, norms.

Each function takes the tower's config and returns its parameters, without the projector to the text model.
Source of all of them: the classes of transformers 5.24.0, built without storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.importers.towers.bricks import attention, layers, linear, mlp, norm, patches, perceptron, side

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.importers.config_reader import Config

__all__ = ["VISION", "grid", "headless_siglip", "hidden_of", "plain_layers"]


def hidden_of(config: Config) -> int:
    """Return the width of a vision tower's hidden state."""
    return config.integer("vt_hidden_size", "hidden_size")


def _inner(config: Config) -> int:
    return config.integer("vt_intermediate_size", "intermediate_size")


def plain_layers(config: Config) -> int:
    """Return the parameters of layers with biases and norms everywhere: CLIP's, SigLIP's and their many relatives'."""
    hidden = hidden_of(config)
    return layers(config, attention(hidden) + mlp(hidden, _inner(config)) + norm(hidden, 2))


def grid(config: Config) -> int:
    """Return the patches of an image."""
    return (side(config, "image_size") // side(config, "patch_size")) ** 2


def _pooling(config: Config) -> int:
    """SigLIP's pooling head: a query, attention and an MLP."""
    hidden = hidden_of(config)
    return hidden + attention(hidden) + norm(hidden) + mlp(hidden, _inner(config))


def siglip(config: Config) -> int:
    """SigLIP: a position for each patch, and where the config says so a pooling head."""
    head = _pooling(config) if config.flag("vision_use_head", default=False) else 0
    return headless_siglip(config) + head


def pooled_siglip(config: Config) -> int:
    """SigLIP that always has its pooling head: Phi-4-multimodal."""
    return headless_siglip(config) + _pooling(config)


def siglip2(config: Config) -> int:
    """SigLIP-2 with native sizes: as `siglip`, with as many positions as the config says."""
    head = _pooling(config) if config.flag("vision_use_head", default=False) else 0
    return positionless_siglip(config) + config.integer("num_patches") * hidden_of(config) + head


def headless_siglip(config: Config) -> int:
    """SigLIP without its pooling head: Idefics3, SmolVLM."""
    hidden = hidden_of(config)
    return patches(config, hidden) + grid(config) * hidden + plain_layers(config) + norm(hidden)


def positionless_siglip(config: Config) -> int:
    """SigLIP with rotary positions: VideoLLaMA-3."""
    hidden = hidden_of(config)
    return patches(config, hidden) + plain_layers(config) + norm(hidden)


def clip(config: Config) -> int:
    """CLIP: a class token and a position for it, norms before and after the layers."""
    hidden = hidden_of(config)
    return patches(config, hidden, bias=False) + (grid(config) + 2) * hidden + plain_layers(config) + norm(hidden, 2)


def pixtral(config: Config) -> int:
    """Pixtral: gated MLPs and no biases, rotary positions."""
    hidden = hidden_of(config)
    each = attention(hidden, bias=False) + mlp(hidden, _inner(config), bias=False, gated=True)
    each += norm(hidden, 2, bias=False)
    return patches(config, hidden, bias=False) + norm(hidden, bias=False) + layers(config, each)


def internvl(config: Config) -> int:
    """InternVL: a class token, a scale for each element after attention and MLP each."""
    hidden = hidden_of(config)
    bias = config.flag("attention_bias", default=False)
    each = attention(hidden, bias=bias, output_bias=True) + mlp(hidden, _inner(config)) + norm(hidden, 2) + 2 * hidden
    if config.flag("use_qk_norm", default=False):
        each += norm(hidden, 2, bias=False)
    positions = (grid(config) + 1) * hidden if config.flag("use_absolute_position_embeddings", default=True) else 0
    last = 0 if config.flag("use_mean_pooling", default=True) else norm(hidden)
    return patches(config, hidden) + hidden + positions + layers(config, each) + last


def intern_vit(config: Config) -> int:
    """InternViT as InternVL first published it: biases, norms and norms on queries by switches of its own."""
    hidden, bias = hidden_of(config), config.flag("qkv_bias", default=True)
    normed = config.text("norm_type", default="layer_norm") == "layer_norm"
    each = attention(hidden, bias=bias, output_bias=True) + mlp(hidden, _inner(config))
    each += norm(hidden, 2, bias=normed) + 2 * hidden
    if config.flag("qk_normalization", default=False):
        each += norm(hidden, 2, bias=False)
    return patches(config, hidden) + (grid(config) + 2) * hidden + layers(config, each)


def llama4(config: Config) -> int:
    """Llama 4: pixel shuffle and an adapter of two maps after the layers."""
    hidden, inner = hidden_of(config), _inner(config)
    adapter = linear(inner, config.integer("projector_input_dim"), bias=False)
    adapter += linear(config.integer("projector_output_dim"), config.integer("projector_output_dim"), bias=False)
    positions = (grid(config) + 2) * hidden
    return patches(config, hidden, bias=False) + positions + norm(hidden, 2) + plain_layers(config) + adapter


def mllama(config: Config) -> int:
    """Llama 3.2 Vision: local and gated global layers, positions of each tile for each ratio of sides."""
    hidden, tiles = hidden_of(config), config.integer("max_num_tiles")
    each = attention(hidden, bias=False) + mlp(hidden, _inner(config)) + norm(hidden, 2)
    count = config.integer("num_hidden_layers") + config.integer("num_global_layers")
    ratios = len(config.sequence("supported_aspect_ratios", default=[None] * 8)) + 1
    positions = (grid(config) + 1) * hidden
    tiled = ratios * tiles * (positions + 2 * hidden)
    # gates: one for each of two tile tables and the positions, two for each global layer
    gates = 3 + 2 * config.integer("num_global_layers")
    return patches(config, hidden, bias=False) + hidden + positions + tiled + gates + norm(hidden, 2) + count * each


def qwen2_vl(config: Config) -> int:
    """Qwen2-VL: patches of two frames, and a merger of two-by-two patches to the text model's width."""
    hidden, merge = config.integer("embed_dim"), config.integer("spatial_merge_size") ** 2
    each = attention(hidden) + mlp(hidden, int(hidden * config.number("mlp_ratio"))) + norm(hidden, 2)
    merger = norm(hidden) + perceptron(hidden * merge, hidden * merge, hidden_of(config))
    frames = config.integer("temporal_patch_size")
    return patches(config, hidden, bias=False, frames=frames) + layers(config, each, "depth") + merger


def qwen2_5_vl(config: Config) -> int:
    """Qwen2.5-VL: as `qwen2_vl`, with gated MLPs and norms without biases; EXAONE-4.5 with fewer key heads."""
    hidden, merge = hidden_of(config), config.integer("spatial_merge_size") ** 2
    each = attention(hidden) + mlp(hidden, _inner(config), gated=True) + norm(hidden, 2, bias=False)
    kv = config.maybe_integer("num_key_value_heads")
    if kv is not None:
        heads = config.integer("num_heads")
        each -= 2 * linear(hidden, hidden - hidden // heads * kv)
    wide = hidden * merge
    merger = norm(hidden, bias=False) + perceptron(wide, wide, config.integer("out_hidden_size"))
    frames = config.integer("temporal_patch_size")
    return patches(config, hidden, bias=False, frames=frames) + layers(config, each, "depth") + merger


def qwen3_vl(config: Config) -> int:
    """Qwen3-VL and Qwen3.5: positions, and a merger more for each layer whose output goes into the text model."""
    hidden, out = hidden_of(config), config.integer("out_hidden_size")
    wide = hidden * config.integer("spatial_merge_size") ** 2
    each = attention(hidden) + mlp(hidden, _inner(config)) + norm(hidden, 2)
    deep = len(config.sequence("deepstack_visual_indexes", default=None))
    mergers = (deep + 1) * perceptron(wide, wide, out) + norm(hidden) + deep * norm(wide)
    positions = config.integer("num_position_embeddings") * hidden
    frames = config.integer("temporal_patch_size")
    return patches(config, hidden, frames=frames) + positions + layers(config, each, "depth") + mergers


def _glm_merger(out: int, inner: int) -> int:
    return linear(out, out, bias=False) + norm(out) + mlp(out, inner, bias=False, gated=True)


def glm4v(config: Config) -> int:
    """GLM-4V: positions, a downsampling convolution, and a merger as wide as ``intermediate_size``."""
    hidden, out = hidden_of(config), config.integer("out_hidden_size")
    bias = config.flag("attention_bias", default=False)
    each = attention(hidden, bias=bias, output_bias=False) + mlp(hidden, out, bias=False, gated=True)
    each += norm(hidden, 2, bias=False)
    down = linear(hidden * config.integer("spatial_merge_size") ** 2, out)
    outer = grid(config) * hidden + norm(hidden, 2, bias=False) + down + _glm_merger(out, _inner(config))
    frames = config.integer("temporal_patch_size")
    return patches(config, hidden, frames=frames) + layers(config, each, "depth") + outer


def glm5_next(config: Config) -> int:
    """GLM-5-Next and GLM-OCR: rotary positions, norms on queries and keys, MLPs of their own width."""
    hidden, out, inner = hidden_of(config), config.integer("out_hidden_size"), _inner(config)
    bias = config.flag("attention_bias", default=True)
    each = attention(hidden, bias=bias) + mlp(hidden, inner, bias=bias, gated=True)
    each += norm(hidden, 2, bias=False) + norm(hidden // config.integer("num_heads"), 2, bias=False)
    down = linear(hidden * config.integer("spatial_merge_size") ** 2, out)
    merged = config.integer_or(
        out * config.integer("in_channels", default=3), "projection_intermediate_size"
    )  # GLM-OCR: channels times the width
    outer = norm(hidden, bias=False) + down + _glm_merger(out, merged)
    frames = config.integer("temporal_patch_size")
    return patches(config, hidden, frames=frames) + layers(config, each, "depth") + outer


def kimi(config: Config) -> int:
    """MoonViT of Kimi: positions on a grid, norms before and after."""
    hidden = hidden_of(config)
    positions = config.integer("pos_emb_height", "init_pos_emb_height") * config.integer(
        "pos_emb_width", "init_pos_emb_width"
    )
    each = attention(hidden) + mlp(hidden, _inner(config)) + norm(hidden, 2)
    stack = layers(config, each, "vt_num_hidden_layers", "num_hidden_layers")
    return patches(config, hidden) + positions * hidden + stack + norm(hidden)


def gemma4(config: Config) -> int:
    """Gemma 4: gated MLPs without biases, four norms a layer and two on heads, a table for each axis of positions."""
    hidden, width = hidden_of(config), config.integer("head_dim")
    each = attention(hidden, bias=False) + mlp(hidden, _inner(config), bias=False, gated=True)
    each += norm(hidden, 4, bias=False) + norm(width, 2, bias=False)
    positions = 2 * config.integer("position_embedding_size") * hidden
    return patches(config, hidden, bias=False) + positions + layers(config, each)


def minimax_m3(config: Config) -> int:
    """MiniMax-M3: CLIP with rotary positions and patches of two frames."""
    hidden = hidden_of(config)
    frames = config.integer("temporal_patch_size", default=2)
    return patches(config, hidden, bias=False, frames=frames) + norm(hidden) + plain_layers(config)


def lfm3(config: Config) -> int:
    """LFM3-VL: layers of gated convolutions or grouped attention, gated MLPs, no biases."""
    hidden, heads = hidden_of(config), config.integer("num_attention_heads")
    kv, kernel = config.integer("num_key_value_heads"), config.integer("conv_kernel_size", default=3)
    convolve = 4 * hidden * hidden + kernel**2 * hidden
    attend = 2 * hidden * hidden * (heads + kv) // heads + norm(hidden // heads, 2, bias=False)
    kinds = config.sequence("layer_types")
    each = mlp(hidden, _inner(config), bias=False, gated=True) + norm(hidden, 2, bias=False)
    own = sum(attend if kind == "full_attention" else convolve for kind in kinds)
    frames = config.integer("temporal_patch_size", default=2)
    return patches(config, hidden, bias=False, frames=frames) + norm(hidden, bias=False) + len(kinds) * each + own


def step3(config: Config) -> int:
    """Step-3.7: scales after attention and MLP, two downsampling convolutions that double the width each."""
    hidden = hidden_of(config)
    inner = round(hidden * config.number("mlp_ratio"))
    each = attention(hidden) + mlp(hidden, inner) + norm(hidden, 2) + 2 * hidden
    down = linear(9 * hidden, 2 * hidden) + linear(9 * 2 * hidden, 4 * hidden)
    positions = config.integer("max_position_embeddings") * hidden
    return patches(config, hidden, bias=False) + positions + norm(hidden) + layers(config, each) + down


def ovis2(config: Config) -> int:
    """Ovis2: gated MLPs, and a head of visual words but five."""
    hidden, words = hidden_of(config), config.integer("vocab_size")
    each = attention(hidden, bias=config.flag("qkv_bias", default=False))
    each += mlp(hidden, _inner(config), bias=config.flag("mlp_bias", default=False), gated=True)
    each += norm(hidden, 2, bias=False)
    outer = norm(hidden, 2, bias=False) + linear(hidden * config.integer("hidden_stride") ** 2, words - 5, bias=False)
    return patches(config, hidden) + grid(config) * hidden + layers(config, each) + outer + norm(words - 5)


def janus(config: Config) -> int:
    """Janus: SigLIP by a ratio of widths."""
    hidden = hidden_of(config)
    inner = int(hidden * config.number("mlp_ratio"))
    each = attention(hidden) + mlp(hidden, inner) + norm(hidden, 2)
    return patches(config, hidden) + grid(config) * hidden + layers(config, each) + norm(hidden)


def muse(config: Config) -> int:
    """Muse: a table of positions and norms around the layers."""
    hidden = hidden_of(config)
    frames = config.integer("patch_temporal", default=2)
    positions = config.integer("pos_emb_height") * config.integer("pos_emb_width") * hidden
    return patches(config, hidden, bias=False, frames=frames) + positions + norm(hidden, 2) + plain_layers(config)


# Of MobileNet-V5, whose layers no key describes.
_MOBILENET = {"mobilenetv5_300m_enc": 294_126_912}


def gemma3n(config: Config) -> int:
    """MobileNet-V5 of Gemma 3n."""
    return _MOBILENET[config.choice(config.text("architecture"), tuple(_MOBILENET), key="architecture", what="tower")]


VISION: dict[str, Callable[[Config], int]] = {
    "clip_vision_model": clip,
    "gemma3n_vision": gemma3n,
    "gemma4_vision": gemma4,
    "glm4v_moe_vision": glm4v,
    "glm4v_vision": glm4v,
    "glm5_next_vision": glm5_next,
    "glm_ocr_vision": glm5_next,
    "idefics2_vision": headless_siglip,
    "idefics3_vision": headless_siglip,
    "intern_vit_6b": intern_vit,
    "internvl_vision": internvl,
    "janus_vision_model": janus,
    "kimi_k25_vision": kimi,
    "lfm3_vl_vision": lfm3,
    "llama4_vision_model": llama4,
    "minimax_m3_vl_vision": minimax_m3,
    "mllama_vision_model": mllama,
    "muse_glimmer_vision": muse,
    "muse_spark_vision": muse,
    "ovis2_vision": ovis2,
    "phi4_multimodal_vision": pooled_siglip,
    "pixtral": pixtral,
    "qianfan_ocr_vision": internvl,
    "qwen2_5_vl_vision": qwen2_5_vl,
    "qwen2_vl_vision": qwen2_vl,
    "qwen3_5_vision": qwen3_vl,
    "qwen4_exp_vision": qwen3_vl,
    "qwen3_vl_vision": qwen3_vl,
    "siglip2_vision_model": siglip2,
    "siglip_vision_model": siglip,
    "smolvlm_vision": headless_siglip,
    "step3p5_vision": step3,
    "video_llama_3_vision": positionless_siglip,
}
