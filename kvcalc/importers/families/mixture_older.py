"""The first mixtures of experts, and those of Ling: DBRX, DeepSeekMoE, Grok-1, JetMoE."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Full, Gated, Mixture, Table
from kvcalc.importers.families.grouped import (
    MLP_KINDS,
    announced_mtp,
    feeds_of,
    grouped,
    layer_count,
    plain_experts,
    routed_experts,
    uniform_mixture,
)
from kvcalc.importers.families.shape import (
    Shape,
    decoder_shape,
    dense_first,
    head_width,
    layer_list,
    mlp_biases,
    refuse,
    stack,
)

if TYPE_CHECKING:
    from kvcalc.core.model import Mlp
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES", "deepseek"]


def dbrx(config: Config) -> Shape:
    """Layer norms without biases; keys of attention and MLP stand in mappings of their own."""
    hidden, query = config.integer("d_model", "hidden_size"), config.integer("n_heads", "num_attention_heads")
    layers = config.integer("n_layers", "num_hidden_layers")
    attention = config.child("attn_config", defaults={"kv_n_heads": 1})
    ffn = config.child("ffn_config", defaults={"ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1})
    mixer = Full(heads=query, kv_heads=attention.integer("kv_n_heads"), head_dim=head_width(config, hidden, query))
    experts = Mixture(
        experts=ffn.integer("moe_num_experts"),
        experts_per_token=ffn.integer("moe_top_k"),
        width=ffn.integer("ffn_hidden_size"),
    )
    blocks = stack([(mixer, 0)] * layers, [(experts, 0)] * layers, norms=2 * hidden)
    limit = config.maybe_integer("max_seq_len", "max_position_embeddings")
    return replace(decoder_shape(config, blocks, hidden=hidden), context_limit=limit)


def jetmoe(config: Config) -> Shape:
    """Queries and outputs are projected by experts too: each chosen expert gives a full set of query heads.

    A token multiplies the chosen experts' projections, which are the layer's matrices here; those of the other experts
    are held and not read, and stand as a table.
    """
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    kv, width = config.integer("num_key_value_heads"), config.integer("kv_channels", "head_dim")
    experts = plain_experts(config, width="intermediate_size")
    chosen = experts.experts_per_token
    mixer = Full(heads=kv * chosen, kv_heads=kv, head_dim=width)
    router = experts.experts * hidden
    blocks = stack([(mixer, hidden)] * layers, [(experts, hidden)] * layers, norms=2 * hidden, matrices=router)
    shape = decoder_shape(config, blocks, hidden=hidden)
    table = Table(name="attention-experts", rows=layers * (experts.experts - chosen) * 2 * kv * width, width=hidden)
    note = "a step over several tokens reads more of the attention experts than is counted"
    return replace(shape, embeddings=(*shape.embeddings, table), notes=(note,))


def deepseek(config: Config) -> Shape:
    """DeepSeekMoE (arXiv 2401.06066): plain attention, shared experts, the first layers dense."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias = config.flag("attention_bias", default=False)
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias)
    inner = config.integer("intermediate_size")
    kinds = ["dense"] * layers
    sparse: Mlp = Gated(width=inner)
    if config.maybe_integer("n_routed_experts") is not None:
        first = config.integer("first_k_dense_replace", default=0, least=0)
        every = config.integer("moe_layer_freq", default=1)
        kinds = ["sparse" if layer >= first and layer % every == 0 else "dense" for layer in range(layers)]
        sparse = routed_experts(config, shared="n_shared_experts")
    feeds = feeds_of(kinds, dense=Gated(width=inner), sparse=sparse)
    return decoder_shape(config, stack([(of.mixer(), of.vectors)] * layers, feeds, norms=2 * hidden), hidden=hidden)


def deepseek_ocr2(config: Config) -> Shape:
    """The text model of DeepSeek-OCR 2: DeepSeekMoE whose dense layers a list names, the first where there is none."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias = config.flag("attention_bias")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias)
    kinds = layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=dense_first(layers, 1))
    inner, experts = config.integer("intermediate_size"), routed_experts(config, shared="n_shared_experts")
    mlp_bias = config.flag("mlp_bias")
    feeds = feeds_of(
        kinds,
        dense=Gated(width=inner),
        sparse=experts,
        dense_vectors=mlp_biases(inner, hidden) if mlp_bias else 0,
        sparse_vectors=mlp_biases(experts.shared_width, hidden) if mlp_bias else 0,
    )
    return decoder_shape(config, stack([(of.mixer(), of.vectors)] * layers, feeds, norms=2 * hidden), hidden=hidden)


def bailing_moe(config: Config) -> Shape:
    """Ling and Ring up to 2.0: the first layers are dense, shared experts as wide as routed ones.

    Norms on queries and keys are there if the config says so; the first version's configs need not.
    """
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    known = ("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM")
    names = [str(name) for name in config.sequence("architectures", default=None)]
    for name in names:
        config.choice(name, known, key="architectures", what="the architecture")
    first = names == ["BailingMoeForCausalLM"]
    if config.flag("use_bias"):
        raise refuse(config, "use_bias", "a mixture of experts with biases")
    normalised = config.flag("use_qk_norm", default=False) if first else config.flag("use_qk_norm")
    of = grouped(config, hidden, qkv_bias=config.flag("use_qkv_bias"), norm="head" if normalised else "")
    feeds = feeds_of(
        dense_first(layers, config.integer("first_k_dense_replace", default=0, least=0)),
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=routed_experts(config, shared="num_shared_experts"),
    )
    blocks = stack([(of.mixer(), of.vectors)] * layers, feeds, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=announced_mtp(config))


def grok(config: Config) -> Shape:
    """Grok-1: four norms a layer, every layer a mixture, no biases."""
    of = grouped(config, config.integer("hidden_size"))
    return uniform_mixture(config, of, plain_experts(config, width="intermediate_size"), norms=4)


RULES: dict[str, Rule] = {
    "bailing_moe": bailing_moe,
    "bailing_moe_v2": bailing_moe,
    "dbrx": dbrx,
    "deepseek": deepseek,
    "deepseek_ocr2_text": deepseek_ocr2,
    "grok-1": grok,
    "jetmoe": jetmoe,
}
