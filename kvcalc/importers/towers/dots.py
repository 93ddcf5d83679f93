"""The towers of dots3: a ViT whose last layers are ever wider mixtures of experts, and a Whisper that rotates keys.

Source: the classes of transformers 5.24.0, built without storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import ceil_div
from kvcalc.importers.families.shape import layer_list
from kvcalc.importers.families.windows import layer_overrides
from kvcalc.importers.towers.bricks import attention, linear, mlp, norm, patches, perceptron

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.importers.config_reader import Config

__all__ = ["AUDIO", "VISION"]

# Experts of the class's own layers; none in a dense one.
_PYRAMID = [-1] * 25 + [*range(4, 65, 4), 64]
_VARIED = ("intermediate_size", "moe_intermediate_size", "num_experts_per_tok", "num_local_experts")
_DENSE, _SPARSE = "dense", "sparse"


def _vision(config: Config) -> int:
    """Patches with a norm, layers with norms of queries and keys, and a merger into the text model's width."""
    hidden = config.integer("embed_dim", "hidden_size")
    width = hidden // config.integer("num_heads", "num_attention_heads")
    each = attention(hidden, bias=config.flag("use_bias", "attention_bias")) + norm(2 * (hidden + width), bias=False)
    feeds = _feeds(config, hidden)
    source = config.integer("adapter_in_dim")
    wide = source * config.integer("adapter_merge_size") ** 2
    merger = norm(source) + perceptron(wide, wide, config.integer("adapter_out_dim"))
    return patches(config, hidden) + norm(hidden, 2, bias=False) + len(feeds) * each + sum(feeds) + merger


def _feeds(config: Config, hidden: int) -> list[int]:
    """Return the parameters of each layer's MLP or experts: by the checkpoint's pyramid, or layer by layer."""
    layers = config.integer("num_hidden_layers")
    own = layer_overrides(config, layers=layers, known=_VARIED)
    pyramid = config.sequence("pyramid_num_routed", default=None) or None
    if pyramid is None and not config.has("mlp_layer_types"):
        pyramid = _PYRAMID
    if pyramid is None:
        kinds = layer_list(config, "mlp_layer_types", layers=layers, known=(_DENSE, _SPARSE), default=())
    elif len(pyramid) != layers:
        raise config.bad("pyramid_num_routed", f"{len(pyramid)} entries", f"{layers} entries, one for each layer")
    elif not all(type(count) is int for count in pyramid):
        raise config.bad("pyramid_num_routed", pyramid, "a whole number for each layer")
    else:
        kinds = [_SPARSE if count > 0 else _DENSE for count in pyramid]
    if own is None:
        own = [{"num_local_experts": count} for count in pyramid or [config.integer("num_local_experts")] * layers]
    return [_feed(config, hidden, kind, sizes) for kind, sizes in zip(kinds, own, strict=True)]


def _feed(config: Config, hidden: int, kind: str, own: dict[str, int]) -> int:
    """Return the parameters of one layer's MLP, or of its experts and their router."""
    if kind == _DENSE:
        inner = own.get("intermediate_size") or config.integer("intermediate_size")
        return mlp(hidden, inner, bias=config.flag("mlp_bias"), gated=True)
    inner = own.get("moe_intermediate_size") or config.integer("moe_intermediate_size")
    experts = own.get("num_local_experts") or config.integer("num_local_experts")
    return experts * (mlp(hidden, inner, bias=False, gated=True) + hidden)


def _audio(config: Config) -> int:
    """Three convolutions that halve time and frequency, gated layers, and an adapter into the text model's width.

    Published configs keep the sizes in ``whisper_config`` under Whisper's names.
    """
    whisper = config.child("whisper_config", defaults={}) if config.raw("whisper_config", default=None) else None

    def size(key: str, older: str) -> int:
        own = whisper.maybe_integer(older) if whisper is not None else None
        return own or config.integer(key)

    hidden, inner = size("hidden_size", "d_model"), size("intermediate_size", "encoder_ffn_dim")
    channels, bins = config.integer("downsample_hidden_size"), size("feature_size", "num_mel_bins")
    stem = linear(9, channels) + 2 * linear(9 * channels, channels)
    stem += linear(channels * ceil_div(bins, 8), hidden, bias=False)
    each = attention(hidden, bias=config.flag("attention_bias"), key_bias=False)
    each += linear(hidden, 2 * inner) + linear(inner, hidden) + norm(hidden, 2, bias=False)
    source = config.integer("whisper_adapter_in_dim", "adapter_input_size")
    out = config.integer("whisper_adapter_out_dim", "adapter_output_size", "adapter_out_dim")
    adapter = norm(source) + perceptron(source, out, out)
    return stem + size("num_hidden_layers", "encoder_layers") * each + norm(hidden, bias=False) + adapter


VISION: dict[str, Callable[[Config], int]] = {"dots3_note_vision_encoder": _vision}

AUDIO: dict[str, Callable[[Config], int]] = {"dots3_note_audio_encoder": _audio}
