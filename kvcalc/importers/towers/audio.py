"""Audio encoders by the ``model_type`` of their own config: convolutions over spectra, then transformer layers.

Each function takes the tower's config and returns its parameters, without the projector to the text model.
Source of all of them: the classes of transformers 5.24.0, built without storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.importers.towers.bricks import attention, layers, linear, mlp, norm

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.importers.config_reader import Config

__all__ = ["AUDIO", "hidden_of"]

_KERNEL = 3


def hidden_of(config: Config) -> int:
    """Return the width of an audio tower's hidden state."""
    return config.integer("d_model", "hidden_size")


def _stack(config: Config, *, key_bias: bool = False) -> int:
    """Whisper's layers: keys have no bias."""
    hidden = hidden_of(config)
    each = attention(hidden, key_bias=key_bias) + norm(hidden, 2)
    each += mlp(hidden, config.integer("encoder_ffn_dim", "intermediate_size"))
    return layers(config, each, "encoder_layers", "num_hidden_layers") + norm(hidden)


def _front(config: Config) -> int:
    """Two convolutions over the spectrum."""
    hidden = hidden_of(config)
    return linear(_KERNEL * config.integer("num_mel_bins"), hidden) + linear(_KERNEL * hidden, hidden)


def whisper(config: Config) -> int:
    """Whisper's encoder: two convolutions, a table of positions, layers."""
    return _front(config) + config.integer("max_source_positions") * hidden_of(config) + _stack(config)


def rotary_whisper(config: Config) -> int:
    """Whisper's encoder with rotary positions: GLM-ASR."""
    return _front(config) + _stack(config)


def qwen2_5_omni(config: Config) -> int:
    """Whisper's encoder with computed positions, two tokens for begin and end, and a map to the text model."""
    out = config.integer("output_dim", default=3584)
    return _front(config) + _stack(config) + 2 * out + linear(hidden_of(config), out)


def _three_convolutions(config: Config) -> int:
    """Three convolutions in two dimensions, which halve the spectrum each, and a map to the hidden state."""
    hidden, wide = hidden_of(config), config.integer("downsample_hidden_size")
    square = _KERNEL * _KERNEL
    bins = config.integer("num_mel_bins")
    for _ in range(3):
        bins = (bins + 1) // 2
    out = linear(wide * bins, hidden, bias=False)
    return linear(square, wide) + 2 * linear(square * wide, wide) + out + _stack(config, key_bias=True)


def qwen3_omni(config: Config) -> int:
    """Qwen3-Omni: three convolutions in two dimensions, layers, and two maps to the text model."""
    hidden = hidden_of(config)
    out = config.integer("output_dim", default=3584)
    return _three_convolutions(config) + linear(hidden, hidden) + linear(hidden, out)


def qwen3_asr(config: Config) -> int:
    """Qwen3-ASR: as `qwen3_omni`, the maps to the text model apart."""
    return _three_convolutions(config)


def gemma3n(config: Config) -> int:
    """The conformer of Gemma 3n."""
    hidden, heads = config.integer("hidden_size"), config.integer("conf_num_attention_heads")
    kernel = config.integer("conf_conv_kernel_size")
    first, second = config.integers("sscp_conv_channel_size", length=2)
    feed = mlp(hidden, 4 * hidden, bias=False) + norm(hidden, 2, bias=False)
    attend = 5 * hidden * hidden + hidden // heads + norm(hidden, 2, bias=False)
    convolve = 3 * hidden * hidden + kernel * hidden + norm(hidden, 2, bias=False)
    each = 2 * feed + attend + convolve + norm(hidden, bias=False)
    front = _KERNEL**2 * (first + first * second) + first + second
    front += second * config.integer("input_feat_size") // 4 * hidden
    return front + layers(config, each, "conf_num_hidden_layers")


def muse(config: Config) -> int:
    """Stages of Muse: patches that widen, and blocks of a depthwise convolution and an MLP."""
    widths = config.integers("hidden_sizes")
    depths, patch_sizes = (config.integers(key, length=len(widths)) for key in ("depths", "patch_sizes"))
    kernel, ratio, before, total = config.integer("conv_kernel_size"), config.number("mlp_ratio"), 1, 0
    for depth, size, hidden in zip(depths, patch_sizes, widths, strict=True):
        block = linear(kernel, hidden) + norm(hidden, bias=False) + mlp(hidden, int(ratio * hidden))
        total += linear(before * size, hidden) + norm(hidden, bias=False) + depth * block
        before = hidden
    out = config.integer("out_hidden_size")
    return total + norm(before, bias=False) + linear(before, out) + norm(out, bias=False)


AUDIO: dict[str, Callable[[Config], int]] = {
    "audioflamingo3_encoder": whisper,
    "gemma3n_audio": gemma3n,
    "glmasr_encoder": rotary_whisper,
    "moss_transcribe_diarize_audio": whisper,
    "muse_spark_audio": muse,
    "qwen2_5_omni_audio_encoder": qwen2_5_omni,
    "qwen2_audio_encoder": whisper,
    "qwen3_asr_encoder": qwen3_asr,
    "qwen3_omni_moe_audio_encoder": qwen3_omni,
    "voxtral_encoder": whisper,
}
