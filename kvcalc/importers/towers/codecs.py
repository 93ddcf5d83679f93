"""Codecs of sound, and the small decoders that write the further codes of a frame.

Source: the classes of transformers 5.24.0, built without storage; codebooks are buffers there, and are not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.importers.towers.bricks import layers, linear, mlp, norm, perceptron

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.importers.config_reader import Config

__all__ = ["CODEC", "TALKER", "vibevoice_map"]

# Frames of the convolutions and of the codes a second, between which Mimi resamples: 25 and 12.5.
_RESAMPLED = 4
_VECTOR_QUANTIZERS = 2


def mimi(config: Config) -> int:
    """Mimi: convolutions and a transformer on either side of two residual vector quantisers."""
    if config.flag("use_conv_shortcut", default=False):
        raise UnsupportedError("a Mimi with convolutions on its shortcuts")
    hidden, filters = config.integer("hidden_size"), config.integer("num_filters")
    kernel, last = config.integer("kernel_size"), config.integer("last_kernel_size")
    channels, ratios = config.integer("audio_channels"), config.integers("upsampling_ratios")
    wide = filters * 2 ** len(ratios)
    outer = linear(channels * kernel, filters) + linear(wide * last, hidden)
    outer += linear(hidden * kernel, wide) + linear(filters * last, channels)
    width, between = filters, 0
    for ratio in reversed(ratios):
        # on either side a residual block and a convolution that halves or doubles; the latter has biases of its outputs
        between += 2 * _residual(config, width) + 8 * ratio * width * width + 3 * width
        width *= 2
    inner = config.integer("head_dim") * config.integer("num_attention_heads")
    kv = config.integer("head_dim") * config.integer("num_key_value_heads")
    each = 2 * hidden * (inner + kv) + mlp(hidden, config.integer("intermediate_size"), bias=False)
    each += norm(hidden, 2) + 2 * hidden
    resampled = _RESAMPLED * hidden * hidden + _RESAMPLED * hidden * hidden // config.integer("upsample_groups")
    quantised = _VECTOR_QUANTIZERS * 2 * hidden * config.integer("vector_quantization_hidden_dimension")
    return outer + between + 2 * layers(config, each) + resampled + quantised


def _residual(config: Config, width: int) -> int:
    """Return the parameters of the blocks of two convolutions before a change of rate."""
    inner, kernel = width // config.integer("compress"), config.integer("residual_kernel_size")
    return config.integer("num_residual_layers") * (linear(width * kernel, inner) + linear(inner, width))


def csm_depth(config: Config) -> int:
    """CSM's depth decoder: Llama's layers, a map from the backbone's width, a head for each further code."""
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    width = config.integer_or(hidden // query, "head_dim")
    kv, bias = config.integer("num_key_value_heads"), config.flag("attention_bias", default=False)
    each = linear(hidden, (query + 2 * kv) * width, bias=bias) + linear(query * width, hidden, bias=bias)
    inner, mlp_bias = config.integer("intermediate_size"), config.flag("mlp_bias", default=False)
    each += mlp(hidden, inner, bias=mlp_bias, gated=True) + norm(hidden, 2, bias=False)
    heads = (config.integer("num_codebooks") - 1) * hidden * config.integer("vocab_size")
    return layers(config, each) + norm(hidden, bias=False) + config.integer("backbone_hidden_size") * hidden + heads


def vibevoice(config: Config) -> int:
    """VibeVoice's tokenizer: stages of depthwise convolutions and MLPs, a convolution that slows down between them."""
    width, kernel = config.integer("num_filters"), config.integer("kernel_size")
    ratios, times = config.integers("downsampling_ratios"), config.integer("ffn_expansion")
    depths = config.integers("depths", length=len(ratios) + 1)

    def stage(wide: int, count: int) -> int:
        return count * (mlp(wide, times * wide) + 4 * wide + linear(kernel, wide))

    total = linear(config.integer("channels") * kernel, width) + stage(width, depths[0])
    for ratio, depth in zip(ratios, depths[1:], strict=True):
        total += linear(width * 2 * ratio, 2 * width) + stage(2 * width, depth)
        width *= 2
    return total + linear(width * kernel, config.integer("hidden_size"))


def vibevoice_map(_top: Config, tower: Config, text: int) -> int:
    """VibeVoice's map from a tokenizer to the text model, with a norm between its halves."""
    return perceptron(tower.integer("hidden_size"), text, text) + norm(text, bias=False)


CODEC: dict[str, Callable[[Config], int]] = {"mimi": mimi, "vibevoice_acoustic_tokenizer_encoder": vibevoice}
TALKER: dict[str, Callable[[Config], int]] = {"csm_depth_decoder_model": csm_depth}
