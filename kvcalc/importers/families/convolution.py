"""Short convolutions in place of attention (LFM2, LFM3) or inside it (ZAYA): states of a few columns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Full, Mixture, Sliding, State
from kvcalc.core.units import ceil_div
from kvcalc.importers.families.shape import (
    Shape,
    attention_biases,
    decoder_shape,
    heads,
    hybrid_layers,
    layer_kinds,
    mlp,
    windowed,
)
from kvcalc.importers.families.states import short_conv_mixer

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer, Mlp
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]

_LFM2_KINDS = {"conv": "convolution", "full_attention": "attention"}
_LFM3_KINDS = {**_LFM2_KINDS, "sliding_attention": "local"}


def _convolution(config: Config, hidden: int) -> tuple[State, int]:
    """Return a gated short convolution and its vectors: hidden to three branches, one of them convolved, and back."""
    kernel = config.integer("conv_L_cache")
    return short_conv_mixer(hidden, kernel), hidden * kernel + (5 * hidden if config.flag("conv_bias") else 0)


def _lfm2_mixers(config: Config, hidden: int) -> dict[str, tuple[Mixer, int]]:
    query, kv, width = heads(config, hidden=hidden)
    attention = Full(heads=query, kv_heads=kv, head_dim=width)
    return {"convolution": _convolution(config, hidden), "attention": (attention, 2 * width)}


def _lfm2_kinds(config: Config, layers: int) -> list[str]:
    """Return the layers' kinds; older configs list the attention layers, and without a list all are."""
    listed = config.sequence("full_attn_idxs", default=None) if not config.has("layer_types") else []
    attended = listed if config.has("full_attn_idxs") else list(range(layers))
    default = ["attention" if layer in attended else "convolution" for layer in range(layers)]
    config.pass_over("full_attn_idxs", "layer_types gives the layers' kinds")
    return layer_kinds(config, "layer_types", names=_LFM2_KINDS, layers=layers, default=default)


def _lfm_shape(config: Config, blocks: tuple[Block, ...], hidden: int) -> Shape:
    """Return the shape; ``tie_embedding`` is the older name of the tie and goes first."""
    shape = decoder_shape(config, blocks, hidden=hidden)
    if shape.head is None or not config.has("tie_embedding") or "tie_word_embeddings" in config.given:
        return shape
    return replace(shape, head=replace(shape.head, tied=config.flag("tie_embedding")))


def _lfm2_width(config: Config) -> int:
    """Return the inner width: by default two thirds of the configured one, rounded up to a multiple."""
    width = config.integer("block_ff_dim", "intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim"):
        return width
    width = int(2 * width / 3)
    if config.raw("block_ffn_dim_multiplier", default=1.0) is None:
        return width
    multiple = config.integer("block_multiple_of")
    return ceil_div(int(config.number("block_ffn_dim_multiplier", default=1.0) * width), multiple) * multiple


def lfm2(config: Config) -> Shape:
    """LFM2: gated short convolutions, and attention with normalised queries and keys in some layers."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    pairs = [(kind, "mlp") for kind in _lfm2_kinds(config, layers)]
    blocks = hybrid_layers(
        _lfm2_mixers(config, hidden), {"mlp": (mlp(_lfm2_width(config)), 0)}, pairs, norms=2 * hidden
    )
    return _lfm_shape(config, blocks, hidden)


def lfm2_moe(config: Config) -> Shape:
    """LFM2 with a mixture of experts after the first dense layers."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    mixture = Mixture(
        experts=config.integer("num_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=config.integer("moe_intermediate_size"),
    )
    mlps: dict[str, tuple[Mlp | None, int]] = {
        "dense": (mlp(config.integer("intermediate_size")), 0),
        "moe": (mixture, 0),
    }
    dense = config.integer("num_dense_layers", least=0)
    kinds = layer_kinds(config, "layer_types", names=_LFM2_KINDS, layers=layers)
    pairs = [(kind, "dense" if layer < dense else "moe") for layer, kind in enumerate(kinds)]
    blocks = hybrid_layers(_lfm2_mixers(config, hidden), mlps, pairs, norms=2 * hidden)
    return _lfm_shape(config, blocks, hidden)


def lfm3(config: Config) -> Shape:
    """LFM3: short convolutions, full and windowed attention with one output gate a head, norms before and after."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    query, kv, width = heads(config, hidden=hidden)
    gate = 1 if config.flag("use_attention_gate") else 0
    bias = config.flag("attention_bias")
    vectors = 2 * width + attention_biases(query, kv, width, hidden, inputs=bias, output=bias)
    full = Full(heads=query, kv_heads=kv, head_dim=width, output_gate=gate)
    window = config.maybe_integer("sliding_window")
    local: Mixer = full
    if window is not None:
        local = Sliding(heads=query, kv_heads=kv, head_dim=width, output_gate=gate, window=window)
    mixers: dict[str, tuple[Mixer, int]] = {
        "convolution": _convolution(config, hidden),
        "attention": (full, vectors),
        "local": (local, vectors),
    }
    period = ("local", "convolution", "attention", "convolution")
    default = ["convolution", *(period[layer % len(period)] for layer in range(1, layers))]
    kinds = layer_kinds(config, "layer_types", names=_LFM3_KINDS, layers=layers, default=default)
    norms = 4 * hidden if config.flag("use_sandwich_norm") else 2 * hidden
    mlps: dict[str, tuple[Mlp | None, int]] = {"mlp": (mlp(config.integer("intermediate_size")), 0)}
    return decoder_shape(
        config, hybrid_layers(mixers, mlps, [(kind, "mlp") for kind in kinds], norms=norms), hidden=hidden
    )


def zaya(config: Config) -> Shape:
    """ZAYA: attention with two convolutions over queries and keys, and values that are half the previous token's.

    Both leave a state beside the cache. A small network routes each token to one expert or to none, and from the second
    layer on it also sees the previous layer's routing.

    Source: Zyphra, arXiv 2510.04476 (compressed convolutional attention).
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    query, kv, width = heads(config, hidden=hidden)
    channels = (query + kv) * width
    depthwise, grouped = config.integer("cca_time0"), config.integer("cca_time1")
    state = State(
        variant="short_conv",
        heads=kv,
        key_dim=width // 2,
        value_dim=1,
        conv_channels=channels,
        conv_window=depthwise + grouped - 2,
        conv_kernel=depthwise,
    )
    router, bias = config.integer("router_hidden_size"), config.flag("attention_bias")
    mixture = _zaya_mixture(config)
    routing = hidden * router + 2 * router * router + router * (mixture.experts + 1)
    vectors = 10 * hidden + channels * (depthwise + 2) + kv + 4 * router
    vectors += attention_biases(query, kv, width, hidden, inputs=bias, output=bias)
    names = {"hybrid": "attention", "hybrid_sliding": "local"}
    kinds = layer_kinds(config, "layer_types", names=names, layers=layers, default=["attention"] * layers)
    window = config.integer("sliding_window") if "local" in kinds else None
    blocks = {
        kind: Block(
            name=kind,
            mixers=(state, windowed(query, kv, width, window if kind == "local" else None)),
            mlp=mixture,
            matrix_parameters=channels * width * grouped + routing,
            vector_parameters=vectors + router,
        )
        for kind in dict.fromkeys(kinds)
    }
    first = replace(blocks[kinds[0]], name=f"{kinds[0]}-first", vector_parameters=vectors)
    stacked = (first, *(blocks[kind] for kind in kinds[1:]))
    return decoder_shape(config, stacked, hidden=hidden, vectors=3 * hidden, head_bias=config.flag("lm_head_bias"))


def _zaya_mixture(config: Config) -> Mixture:
    chosen = config.integer("num_experts_per_tok")
    if chosen != 1:
        raise config.bad("num_experts_per_tok", chosen, "1")
    width, experts = config.integer("moe_intermediate_size"), config.integer("num_experts")
    return Mixture(experts=experts, experts_per_token=chosen, width=width, zero_experts=1, router=False)


RULES: dict[str, Rule] = {
    "lfm2": lfm2,
    "lfm2_moe": lfm2_moe,
    "lfm3": lfm3,
    "zaya": zaya,
}
