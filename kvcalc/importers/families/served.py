"""Models that engines have classes for and transformers has not: by the code of SGLang 0.5.23 and vLLM 0.32."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Full, Mixture, State, Table
from kvcalc.importers.families.dense import llama
from kvcalc.importers.families.grouped import (
    feeds_of,
    grouped,
    layer_count,
    plain_experts,
    uniform_mixture,
)
from kvcalc.importers.families.latent import longcat_flash
from kvcalc.importers.families.shape import (
    Shape,
    attention_biases,
    decoder_shape,
    dense_first,
    head_width,
    heads,
    hybrid_layers,
    layer_kinds,
    mlp,
    stack,
    windowed,
)
from kvcalc.importers.families.windowed import qwen3_vl

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]

_BLOCKS = "blocks of tokens are written together; the cache is that of a model that writes one after another"


def sdar(config: Config) -> Shape:
    """SDAR: Qwen3's layers, which write a block of tokens at a time by diffusion and keep what is done."""
    return replace(qwen3_vl(config), notes=(_BLOCKS,))


def sdar_moe(config: Config) -> Shape:
    """SDAR as a mixture: Qwen3-MoE's layers, a mixture in each."""
    bias = config.flag("attention_bias", default=False)
    of = grouped(config, config.integer("hidden_size"), qkv_bias=bias, output_bias=bias, norm="head")
    shape = uniform_mixture(config, of, plain_experts(config, width="moe_intermediate_size"))
    return replace(shape, notes=(*shape.notes, _BLOCKS))


def llada2(config: Config) -> Shape:
    """LLaDA 2: Ling's layers, which write a block of tokens at a time by diffusion; the first layers are dense."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    normalised = config.flag("use_qk_norm", default=True)
    bias = config.flag("use_qkv_bias", default=False)
    of = grouped(config, hidden, qkv_bias=bias, output_bias=config.flag("use_bias"), norm="head" if normalised else "")
    width = config.integer("moe_intermediate_size")
    shared = config.integer_or(width, "moe_shared_expert_intermediate_size")
    experts = Mixture(
        experts=config.integer("num_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=width,
        shared_width=shared * config.integer_or(0, "num_shared_experts", least=0),
    )
    feeds = feeds_of(
        dense_first(layers, config.integer("first_k_dense_replace", default=0, least=0)),
        dense=mlp(config.integer("intermediate_size")),
        sparse=experts,
    )
    blocks = stack([(of.mixer(), of.vectors)] * layers, feeds, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=(_BLOCKS,))


_SALA_KINDS = {
    **dict.fromkeys(("minicpm4", "minicpm", "standard", "attention", "attn"), "attention"),
    **dict.fromkeys(("lightning", "lightning_attn", "lightning-attn"), "lightning"),
}


def minicpm_sala(config: Config) -> Shape:
    """MiniCPM-SALA: lightning attention between layers of grouped attention; the kinds repeat in turn.

    Either kind may have a gate on its output. A lightning layer keeps a matrix a head in 32 bits; summaries of blocks
    that a sparse kernel of the other layers may keep are not counted.
    """
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    query, kv, width = heads(config, hidden=hidden)
    bias = config.flag("attention_bias", default=False)
    gate = width if config.flag("attn_use_output_gate", default=False) else 0
    vectors = attention_biases(query, kv, width, hidden, inputs=bias, output=bias) + (query * gate if bias else 0)
    pattern = layer_kinds(config, "mixer_types", names=_SALA_KINDS, layers=None, default=("attention",))
    kinds = [pattern[index % len(pattern)] for index in range(layers)]
    mixers: dict[str, tuple[Mixer, int]] = {
        "attention": (Full(heads=query, kv_heads=kv, head_dim=width, output_gate=gate), vectors)
    }
    if "lightning" in kinds:
        mixers["lightning"] = _lightning(config, hidden, query, width)
    feed = mlp(config.integer("intermediate_size"))
    blocks = hybrid_layers(mixers, {"mlp": (feed, 0)}, [(kind, "mlp") for kind in kinds], norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def _lightning(config: Config, hidden: int, query: int, width: int) -> tuple[State, int]:
    """Return simple gated linear attention, and its vectors."""
    count = config.integer_or(query, "lightning_nh")
    if config.integer_or(count, "lightning_nkv") != count:
        raise config.bad("lightning_nkv", config.raw("lightning_nkv"), f"{count}, the query heads of the layer")
    each = config.integer_or(width, "lightning_head_dim")
    inner, bias = count * each, config.flag("attention_bias", default=False)
    gated = config.flag("use_output_gate", default=False)
    state = State(
        variant="linear",
        heads=count,
        key_dim=each,
        value_dim=each,
        recurrent_format="fp32",
        matrix_parameters=(5 if gated else 4) * hidden * inner,
    )
    vectors = 2 * each if config.flag("qk_norm", default=True) else 0
    vectors += inner if config.flag("use_output_norm", default=False) else 0
    vectors += (4 if gated else 3) * inner + hidden if bias else 0
    return state, vectors


_JET_KINDS = {"jet": "jet", "attn": "attention", "swa": "local"}


def jet_nemotron(config: Config) -> Shape:
    """Jet-Nemotron: gated delta nets whose convolution over the values is made for each token, and some attention.

    Source: Gu et al. 2025, arXiv 2508.15884, section 2.3.
    """
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    kinds = layer_kinds(config, "layer_types", names=_JET_KINDS, layers=layers)
    query = config.integer("num_attention_heads")
    kv, width = config.integer_or(query, "num_key_value_heads"), head_width(config, hidden, query)
    vectors = attention_biases(query, kv, width, hidden, inputs=True, output=False)
    parts = config.child("efficient_attention_config")
    mixers: dict[str, tuple[Mixer, int]] = {"attention": (windowed(query, kv, width, None), vectors)}
    if "local" in kinds:
        window = parts.child("swa").integer("window_size")
        mixers["local"] = windowed(query, kv, width, window), vectors
    if "jet" in kinds:
        mixers["jet"] = _jet_block(parts.child("jet"), hidden)
    feed = mlp(config.integer("intermediate_size"))
    blocks = hybrid_layers(mixers, {"mlp": (feed, 0)}, [(kind, "mlp") for kind in kinds], norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def _jet_block(config: Config, hidden: int) -> tuple[State, int]:
    """Return a delta net with a convolution over its values alone, and its vectors."""
    count, key = config.integer("num_heads"), config.integer("head_dim")
    value, kernel = int(key * config.number("expand_v")), config.integer("conv_size")
    keys, values = count * key, count * value
    generator = values // config.integer("dconv_generator_reduction")
    state = State(
        variant="gated_delta",
        heads=count,
        key_dim=key,
        value_dim=value,
        conv_channels=values,
        conv_window=kernel,
        conv_kernel=kernel,
        recurrent_format="fp32",
        matrix_parameters=hidden * (2 * keys + 3 * values + 2 * count + generator) + generator * values * kernel,
    )
    return state, values * kernel + 2 * count + value


def longcat_ngram(config: Config) -> Shape:
    """LongCat-Flash-Lite: LongCat-Flash with tables of hashed n-grams beside the token table, each with a map.

    Each of ``emb_split_num`` heads of each length up to ``emb_neighbor_num`` has a table, all of nearly the same size.
    """
    shape, vocabulary = longcat_flash(config), config.integer("vocab_size")
    ratio = config.maybe_integer("ngram_vocab_size_ratio")
    if ratio is None:
        return shape
    count = config.integer("emb_split_num") * (config.integer("emb_neighbor_num") - 1)
    if count < 1 or shape.hidden_size % count:
        raise config.bad("emb_neighbor_num", count, f"tables that share {shape.hidden_size} elements")
    rows = count * (ratio * vocabulary) + count * count
    table = Table(name="ngram", rows=rows // count, width=shape.hidden_size)
    maps = shape.hidden_size * shape.hidden_size
    return replace(shape, embeddings=(*shape.embeddings, table), matrix_parameters=shape.matrix_parameters + maps)


RULES: dict[str, Rule] = {
    "jet_nemotron": jet_nemotron,
    "llada2_moe": llada2,
    "longcat_flash_ngram": longcat_ngram,
    "minicpm_sala": minicpm_sala,
    "sdar": sdar,
    "sdar_moe": sdar_moe,
    "xverse": llama,
}
