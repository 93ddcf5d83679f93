"""Towers that are read through queries or convolutions: Q-Formers, document readers, RADIO, conformers.

Source of all of them: the classes of transformers 5.24.0, built without storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.importers.towers.bricks import attention, layers, linear, mlp, norm, patches, perceptron, side
from kvcalc.importers.towers.vision import grid, headless_siglip, hidden_of, plain_layers
from kvcalc.importers.wrappers import inner_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.importers.config_reader import Config

__all__ = ["AUDIO", "VISION", "aria", "blip", "got_ocr2", "granite", "idefics2", "instructblip", "janus", "radio"]


def _blip(config: Config) -> int:
    """BLIP-2's vision transformer: a class token, positions, layers as CLIP's."""
    hidden = hidden_of(config)
    return patches(config, hidden) + (grid(config) + 2) * hidden + plain_layers(config) + norm(hidden)


def _segment_anything(config: Config) -> int:
    """Segment Anything's encoder with its neck: relative positions along rows and columns of a window or the grid."""
    hidden, sides = hidden_of(config), side(config, "image_size") // side(config, "patch_size")
    width, out = hidden // config.integer("num_attention_heads"), config.integer("output_channels", default=256)
    count, whole = config.integer("num_hidden_layers"), len(config.sequence("global_attn_indexes"))
    each = attention(hidden) + mlp(hidden, config.integer("mlp_dim")) + norm(hidden, 2)
    seen = whole * (2 * sides - 1) + (count - whole) * (2 * config.integer("window_size") - 1)
    neck = linear(hidden, out, bias=False) + linear(9 * out, out, bias=False) + norm(out, 2)
    return patches(config, hidden) + sides**2 * hidden + count * each + 2 * seen * width + neck


def _minicpm(config: Config) -> int:
    """MiniCPM-V 4.6: SigLIP, and a merger of windows with attention of its own inside it."""
    hidden, window = hidden_of(config), 1
    for size in config.integers("window_kernel_size", default=[2, 2]):
        window *= size
    wide = window * hidden
    inner = window * config.integer("intermediate_size")
    return headless_siglip(config) + attention(hidden) + norm(hidden) + norm(wide) + perceptron(wide, inner, hidden)


def _hunyuan(config: Config) -> int:
    """HunYuan-VL: positions of the longest sequence, and a merger of convolutions with marks for lines and ends."""
    hidden, out = hidden_of(config), config.integer("out_hidden_size", default=4096)
    positions = (config.integer("max_vit_seq_len", default=16384) + 1) * hidden
    wide = 4 * hidden
    merger = linear(4 * hidden, 2 * hidden) + linear(2 * hidden, wide) + linear(wide, out)
    marks = wide + 3 * out + norm(hidden, bias=False) + norm(out, bias=False)
    return patches(config, hidden) + positions + plain_layers(config) + merger + marks


def _hy_v4(config: Config) -> int:
    """HY-V4-VL: as HunYuan-VL, with one mark and two convolutions."""
    hidden, out = hidden_of(config), config.integer("out_hidden_size", default=6144)
    positions = (config.integer("max_vit_seq_len", default=16384) + 1) * hidden
    merger = linear(4 * hidden, 4 * hidden) + linear(4 * hidden, out) + out + norm(hidden, bias=False)
    return patches(config, hidden) + positions + plain_layers(config) + merger


def radio(config: Config) -> int:
    """RADIO: positions of the largest image, registers, patches of images and of pairs of frames, scales."""
    hidden, patch = hidden_of(config), config.integer("patch_dim")
    positions = (config.integer("max_img_size") // config.integer("patch_size")) ** 2
    each = attention(hidden) + mlp(hidden, int(hidden * config.number("mlp_ratio"))) + norm(hidden, 2) + 2 * hidden
    registers = config.integer("num_registers") + config.integer("num_cls_tokens", default=3)
    frames = 1 + config.integer("video_temporal_patch_size", default=2)
    return (positions + registers + frames * patch) * hidden + layers(config, each)


def _omniasr(config: Config) -> int:
    """wav2vec 2.0's encoder: convolutions over the wave, a grouped one for positions, layers."""
    hidden, before, front = config.integer("hidden_size"), 1, 0
    widths = config.integers("conv_dim")
    for out, kernel in zip(widths, config.integers("conv_kernel", length=len(widths)), strict=True):
        front += linear(before * kernel, out, bias=config.flag("conv_bias", default=True)) + norm(out)
        before = out
    groups, width = config.integer("num_conv_pos_embedding_groups"), config.integer("num_conv_pos_embeddings")
    front += norm(before) + linear(before, hidden) + linear(hidden // groups * width, hidden)
    each = attention(hidden) + mlp(hidden, config.integer("intermediate_size")) + norm(hidden, 2)
    return front + layers(config, each) + norm(hidden)


def _granite_speech(config: Config) -> int:
    """The conformer of Granite Speech, with its head for the words it is trained on."""
    hidden, width = config.integer("hidden_dim"), config.integer("dim_head")
    inner, wide = config.integer("num_heads") * width, 2 * hidden
    words = config.integer("output_dim", default=42)
    feed = norm(hidden) + mlp(hidden, config.integer("feedforward_mult") * hidden)
    attend = norm(hidden) + 3 * hidden * inner + linear(inner, hidden)
    attend += (2 * config.integer("max_pos_emb") + 1) * width
    convolve = norm(hidden) + linear(hidden, 2 * wide) + config.integer("conv_kernel_size") * wide + norm(wide)
    each = 2 * feed + attend + convolve + linear(wide, hidden) + norm(hidden)
    outer = linear(config.integer("input_dim"), hidden) + linear(hidden, words) + linear(words, hidden)
    return outer + layers(config, each, "num_layers")


def _phi4(config: Config) -> int:
    """The conformer of Phi-4-multimodal: separable convolutions, gated feed-forwards, biases of relative positions."""
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    channels, kernel = config.integer("nemo_conv_channels"), config.integer("kernel_size")
    front = linear(9, channels) + 2 * (linear(9, channels) + linear(channels, channels))
    front += linear(channels * config.integer("input_size") // config.integer("time_reduction", default=8), hidden)
    front += 2 * config.integer("bias_max_distance") * config.integer("num_attention_heads", default=16)
    feed = norm(hidden) + linear(hidden, 2 * inner) + linear(inner, hidden)
    convolve = norm(hidden) + 2 * hidden + linear(hidden, 2 * hidden) + linear(kernel, hidden)
    convolve += 2 * linear(hidden, hidden)
    each = 2 * feed + attention(hidden) + convolve + norm(hidden, 2)
    return front + layers(config, each, "num_blocks", "num_hidden_layers")


def _q_former(config: Config, *, text: bool) -> int:
    """Queries that attend to a tower's output in every few layers; with text, words and an MLP for them beside."""
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    count = config.integer("num_hidden_layers")
    each = attention(hidden) + norm(hidden) + (2 if text else 1) * (mlp(hidden, inner) + norm(hidden))
    crossed = -(-count // config.integer("cross_attention_frequency"))
    cross = 2 * linear(hidden, hidden) + 2 * linear(config.integer("encoder_hidden_size"), hidden) + norm(hidden)
    words = 0
    if text:
        words = (config.integer("vocab_size") + config.integer("max_position_embeddings")) * hidden
    return count * each + crossed * cross + norm(hidden) + words


def _queries(top: Config, key: str, kind: str, *, text: bool, out: int, queries: int) -> int:
    former = inner_config(top, key, kind)
    hidden = former.integer("hidden_size")
    return queries * hidden + _q_former(former, text=text) + linear(hidden, out)


def blip(top: Config, _tower: Config, text: int) -> int:
    """BLIP-2's Q-Former and its map to the text model."""
    queries = top.integer("num_query_tokens", default=32)
    return _queries(top, "qformer_config", "blip_2_qformer", text=False, out=text, queries=queries)


def instructblip(top: Config, _tower: Config, text: int) -> int:
    """InstructBLIP's Q-Former, which reads the instruction too."""
    queries = top.integer("num_query_tokens", default=32)
    return _queries(top, "qformer_config", "instructblip_qformer", text=True, out=text, queries=queries)


def granite(top: Config, _tower: Config, text: int) -> int:
    """Granite Speech's Q-Former: a query for every few frames of a window."""
    queries = top.integer("window_size", default=15) // top.integer("downsample_rate", default=5)
    return _queries(top, "projector_config", "blip_2_qformer", text=False, out=text, queries=queries)


def idefics2(top: Config, tower: Config, text: int) -> int:
    """Idefics2's gated map and its perceiver of latents."""
    own = inner_config(top, "perceiver_config", "idefics2_perceiver")
    heads, width = own.integer("resampler_n_heads", default=16), own.integer("resampler_head_dim", default=96)
    kv, depth = own.integer("num_key_value_heads", default=4), own.integer("resampler_depth", default=3)
    hidden = own.integer("hidden_size", default=text)
    attend = 2 * hidden * width * (heads + kv)
    each = attend + mlp(hidden, 4 * hidden, bias=False, gated=True) + norm(hidden, 3, bias=False)
    latents = own.integer("resampler_n_latents", default=64) * hidden + norm(hidden, bias=False)
    inner = top.child("text_config").integer("intermediate_size", default=14336)
    joined = 2 * hidden_of(tower) * inner + inner * text
    return joined + latents + depth * each


def aria(top: Config, tower: Config, text: int) -> int:
    """Aria's queries, attention to the tower's output, and an MLP."""
    hidden = hidden_of(tower)
    queries = top.integer("max_value_projector_patch_to_query_dict", default=256) * hidden
    attend = 3 * hidden * hidden + attention(hidden) + linear(hidden, hidden) + norm(hidden, 3)
    return queries + attend + linear(hidden, text, bias=False) + linear(text, text, bias=False)


def got_ocr2(_top: Config, tower: Config, text: int) -> int:
    """GOT-OCR2's two convolutions and a map."""
    out = tower.integer("output_channels", default=256)
    return linear(9 * out, 2 * out, bias=False) + linear(9 * 2 * out, text, bias=False) + linear(text, text)


def janus(_top: Config, tower: Config, _text: int) -> int:
    """Janus' aligner: a map, and more of the same width up to its depth."""
    width = tower.integer("projection_dim", default=2048)
    return linear(hidden_of(tower), width) + (tower.integer("depth", default=2) - 1) * linear(width, width)


VISION: dict[str, Callable[[Config], int]] = {
    "blip_2_vision_model": _blip,
    "blip_vision_model": _blip,
    "got_ocr2_vision": _segment_anything,
    "hunyuan_vl_vision": _hunyuan,
    "hy_v4_vl_vision": _hy_v4,
    "instructblip_vision_model": _blip,
    "instructblipvideo_vision_model": _blip,
    "minicpm_ocr_vision": _minicpm,
    "minicpmv4_6_vision": _minicpm,
    "minicpmv4_7_vision": _minicpm,
    "paddleocr_vl_vision": headless_siglip,
    "pp_chart2table_vision": _segment_anything,
    "radio": radio,
}

AUDIO: dict[str, Callable[[Config], int]] = {
    "granite_speech_encoder": _granite_speech,
    "granite_speech_plus_encoder": _granite_speech,
    "omniasr_audio": _omniasr,
    "phi4_multimodal_audio": _phi4,
}
