"""Mixtures of experts with grouped-head attention, some of whose layers have a sliding window."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Gated, Mixture
from kvcalc.importers.families.grouped import (
    ATTENTION_KINDS,
    MLP_KINDS,
    announced_mtp,
    feeds_of,
    grouped,
    layer_count,
    plain_experts,
    routed_experts,
    sparse_steps,
    window_of,
    windowed_mixers,
)
from kvcalc.importers.families.shape import Shape, decoder_shape, dense_first, layer_list, mlp_biases, stack

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]


def granitemoe_swa(config: Config) -> Shape:
    """Granite mixtures with attention sinks: of four layers, the first sees everything, the others a window."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias = config.flag("attention_bias")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias, sinks=True)
    default = ["sliding_attention" if layer % 4 else "full_attention" for layer in range(layers)]
    kinds = layer_list(config, "layer_types", layers=layers, known=ATTENTION_KINDS, default=default)
    shared = config.integer("shared_intermediate_size", least=0)
    experts = plain_experts(config, width="intermediate_size", shared=shared)
    mixers = windowed_mixers(kinds, of, window_of(config, kinds))
    return decoder_shape(config, stack(mixers, [(experts, 0)] * layers, norms=2 * hidden), hidden=hidden)


def flint(config: Config) -> Shape:
    """Qwen-like mixtures with attention sinks, windows by a list of layers, and an ungated shared expert."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias = config.flag("attention_bias")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias, norm="head", sinks=True)
    everything = {0, 1, layers - 1} | set(range(1, layers, 4))
    default = ["full_attention" if layer in everything else "sliding_attention" for layer in range(layers)]
    kinds = layer_list(config, "layer_types", layers=layers, known=ATTENTION_KINDS, default=default)
    shared = config.integer("shared_expert_intermediate_size", least=0)
    feeds = feeds_of(
        sparse_steps(config, layers, dense=(0, 1)),
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=plain_experts(config, width="moe_intermediate_size", shared=shared),
    )
    mixers = windowed_mixers(kinds, of, window_of(config, kinds))
    return decoder_shape(config, stack(mixers, feeds, norms=2 * hidden), hidden=hidden)


def mellum(config: Config) -> Shape:
    """Queries and keys are normalised head by head; windows and mixtures by lists of layers; no shared expert."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias = config.flag("attention_bias")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias, norm="head")
    everywhere = ["full_attention"] * layers
    kinds = layer_list(config, "layer_types", layers=layers, known=ATTENTION_KINDS, default=everywhere)
    mlps = layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=["sparse"] * layers)
    feeds = feeds_of(
        mlps,
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=plain_experts(config, width="moe_intermediate_size"),
    )
    mixers = windowed_mixers(kinds, of, window_of(config, kinds))
    return decoder_shape(config, stack(mixers, feeds, norms=2 * hidden), hidden=hidden, notes=announced_mtp(config))


def laguna(config: Config) -> Shape:
    """Query heads may change from layer to layer; a gate on the output, of one or of all elements of a head.

    The router's correction bias is a parameter.
    """
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias = config.flag("attention_bias")
    gating = config.raw("gating", default=True)
    known = ("True", "per-head", "per-element")
    per_head = config.choice(str(gating), known, key="gating", what="the gating") != "per-element"
    everywhere = ["full_attention"] * layers
    kinds = layer_list(config, "layer_types", layers=layers, known=ATTENTION_KINDS, default=everywhere)
    mlps = layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=dense_first(layers, 1))
    declared = config.sequence("num_attention_heads_per_layer", default=None)
    counts = all(isinstance(entry, int) and entry > 0 for entry in declared)
    if declared and (len(declared) != layers or not counts):
        raise config.bad("num_attention_heads_per_layer", declared, f"{layers} positive whole numbers")
    window = window_of(config, kinds)
    mixers: list[tuple[Mixer, int]] = []
    for layer, kind in enumerate(kinds):
        of = grouped(
            config, hidden, qkv_bias=bias, output_bias=bias, norm="head", query=declared[layer] if declared else None
        )
        of = replace(of, gate=1 if per_head else of.width)
        mixers.append((of.mixer(window if kind == "sliding_attention" else None), of.vectors))
    shared = config.integer("shared_expert_intermediate_size", least=0)
    experts = plain_experts(config, width="moe_intermediate_size", shared=shared)
    feeds = feeds_of(
        mlps, dense=Gated(width=config.integer("intermediate_size")), sparse=experts, sparse_vectors=experts.experts
    )
    return decoder_shape(config, stack(mixers, feeds, norms=2 * hidden), hidden=hidden)


def kolibri1(config: Config) -> Shape:
    """Norms before and after attention and MLP; of five layers, the last sees everything, the others a window."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    of = grouped(config, hidden, norm="head")
    default = ["sliding_attention" if (layer + 1) % 5 else "full_attention" for layer in range(layers)]
    kinds = layer_list(config, "layer_types", layers=layers, known=ATTENTION_KINDS, default=default)
    shared = config.integer("shared_expert_intermediate_size", least=0)
    experts = plain_experts(config, width="moe_intermediate_size", shared=shared)
    mixers = windowed_mixers(kinds, of, window_of(config, kinds))
    return decoder_shape(config, stack(mixers, [(experts, 0)] * layers, norms=4 * hidden), hidden=hidden)


def dots1(config: Config) -> Shape:
    """The first layers are dense, those from ``max_window_layers`` on windowed; queries and keys are normalised."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias = config.flag("attention_bias")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias, norm="head")
    window = config.maybe_integer("sliding_window")
    last = layers if window is None else config.integer("max_window_layers", least=0)
    default = ["full_attention" if layer < last else "sliding_attention" for layer in range(layers)]
    kinds = layer_list(config, "layer_types", layers=layers, known=ATTENTION_KINDS, default=default)
    feeds = feeds_of(
        dense_first(layers, config.integer("first_k_dense_replace", least=0)),
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=routed_experts(config, shared="n_shared_experts"),
    )
    mixers = windowed_mixers(kinds, of, window_of(config, kinds))
    return decoder_shape(config, stack(mixers, feeds, norms=2 * hidden), hidden=hidden)


def exaone_moe(config: Config) -> Shape:
    """No biases; of each ``sliding_window_pattern`` layers the last sees everything; the first layers are dense."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    of = grouped(config, hidden, norm="head")
    default = ["full_attention"] * layers
    if not config.has("layer_types") and config.maybe_integer("sliding_window") is not None:
        every = config.integer("sliding_window_pattern")
        default = ["sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)]
    kinds = layer_list(config, "layer_types", layers=layers, known=ATTENTION_KINDS, default=default)
    first = dense_first(layers, config.integer("first_k_dense_replace", least=0))
    feeds = feeds_of(
        layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=first),
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=routed_experts(config, shared="num_shared_experts"),
    )
    mixers = windowed_mixers(kinds, of, window_of(config, kinds))
    return decoder_shape(config, stack(mixers, feeds, norms=2 * hidden), hidden=hidden, notes=announced_mtp(config))


def afmoe(config: Config) -> Shape:
    """Four norms a layer, a gate as wide as the queries on the output; the routing bias is a parameter."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias = config.flag("attention_bias")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias, norm="head", gate=True)
    every = config.integer("global_attn_every_n_layers")
    default = ["sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)]
    kinds = layer_list(config, "layer_types", layers=layers, known=ATTENTION_KINDS, default=default)
    experts = routed_experts(config, shared="num_shared_experts")
    feeds = feeds_of(
        dense_first(layers, config.integer("num_dense_layers", least=0)),
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=experts,
        sparse_vectors=experts.experts,
    )
    mixers = windowed_mixers(kinds, of, window_of(config, kinds))
    return decoder_shape(config, stack(mixers, feeds, norms=4 * hidden), hidden=hidden)


def aria(config: Config) -> Shape:
    """Aria's text model: every layer a mixture, with shared experts as wide as routed ones, which may have biases."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias, width = config.flag("attention_bias"), config.integer("intermediate_size")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias)
    shared = width * config.integer("moe_num_shared_experts", least=0)
    experts = Mixture(
        experts=config.integer("moe_num_experts"),
        experts_per_token=config.integer("moe_topk"),
        width=width,
        shared_width=shared,
    )
    feed = experts, mlp_biases(shared, hidden) if config.flag("mlp_bias") else 0
    blocks = stack([(of.mixer(), of.vectors)] * layers, [feed] * layers, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def beam(config: Config) -> Shape:
    """Four norms a layer, a gate with a bias for each head on the output; the first three layers are dense."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias = config.flag("attention_bias")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias, norm="head", gate=True, sinks=True)
    default = ["sliding_attention" if (layer + 1) % 6 else "full_attention" for layer in range(layers)]
    default[-1] = "full_attention"
    kinds = layer_list(config, "layer_types", layers=layers, known=ATTENTION_KINDS, default=default)
    feeds = feeds_of(
        layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=dense_first(layers, 3)),
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=plain_experts(config, width="moe_intermediate_size"),
    )
    mixers = windowed_mixers(kinds, of, window_of(config, kinds))
    return decoder_shape(config, stack(mixers, feeds, norms=4 * hidden), hidden=hidden)


def cohere2_moe(config: Config) -> Shape:
    """Attention and MLP read one input; of each ``sliding_window_pattern`` layers the last sees everything."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias = config.flag("attention_bias")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias)
    first = config.integer("first_k_dense_replace", default=0, least=0)
    patterns = [config.integer("prefix_dense_sliding_window_pattern", default=1)] * min(first, layers)
    patterns += [config.integer("sliding_window_pattern")] * (layers - len(patterns))
    places = [*range(min(first, layers)), *range(layers - min(first, layers))]
    default = [
        "sliding_attention" if (layer + 1) % every else "full_attention"
        for layer, every in zip(places, patterns, strict=True)
    ]
    kinds = layer_list(config, "layer_types", layers=layers, known=ATTENTION_KINDS, default=default)
    mlps = layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=dense_first(layers, first))
    inner = config.integer("intermediate_size")
    shared = inner * config.integer("num_shared_experts", least=0)
    feeds = feeds_of(
        mlps,
        dense=Gated(width=config.integer_or(inner, "prefix_dense_intermediate_size")),
        sparse=plain_experts(config, width="intermediate_size", shared=shared),
    )
    mixers = windowed_mixers(kinds, of, window_of(config, kinds))
    return decoder_shape(config, stack(mixers, feeds, norms=hidden, parallel=True), hidden=hidden)


RULES: dict[str, Rule] = {
    "afmoe": afmoe,
    "aria_text": aria,
    "beam": beam,
    "cohere2_moe": cohere2_moe,
    "dots1": dots1,
    "exaone_moe": exaone_moe,
    "flint": flint,
    "granitemoe_swa": granitemoe_swa,
    "kolibri1": kolibri1,
    "laguna": laguna,
    "mellum": mellum,
}
