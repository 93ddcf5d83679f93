"""Mixtures of experts with grouped-head attention, alike in all layers (or windowed in all of them)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Gated, Indexer, Mixture, Table
from kvcalc.importers.families.grouped import (
    ATTENTION_KINDS,
    MLP_KINDS,
    Grouped,
    announced_mtp,
    feeds_of,
    grouped,
    layer_count,
    plain_experts,
    routed_experts,
    sparse_steps,
    uniform_mixture,
    window_of,
    windowed_mixers,
)
from kvcalc.importers.families.shape import (
    Shape,
    decoder_shape,
    dense_first,
    heads,
    layer_list,
    mlp_biases,
    refuse,
    stack,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.model import Mixer, Mlp
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]


def mixtral(config: Config) -> Shape:
    """No biases; every layer is a mixture; a window holds for every layer, or for those that ``layer_types`` names."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    of, experts = grouped(config, hidden), plain_experts(config, width="intermediate_size")
    blocks = stack(_windowed_layers(config, of), [(experts, 0)] * layers, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def _windowed_layers(config: Config, of: Grouped) -> list[tuple[Mixer, int]]:
    """Return attention over the window in every layer, or in those that ``layer_types`` names."""
    layers, window = layer_count(config), config.maybe_integer("sliding_window")
    default = [ATTENTION_KINDS[window is not None]] * layers
    kinds = layer_list(config, "layer_types", layers=layers, known=ATTENTION_KINDS, default=default)
    return windowed_mixers(kinds, of, window_of(config, kinds))


def minimax_m2(config: Config) -> Shape:
    """Queries and keys are normalised over all heads together; the router's correction bias is a buffer."""
    of = grouped(config, config.integer("hidden_size"), norm="all")
    return uniform_mixture(config, of, plain_experts(config, width="intermediate_size"))


def olmoe(config: Config) -> Shape:
    """Queries and keys are normalised over all heads together (OLMoE before, FlexOlmo after attention)."""
    bias = config.flag("attention_bias")
    query, _, width = heads(config, hidden=config.integer("hidden_size"))
    if query * width != config.integer("hidden_size"):
        raise refuse(config, "head_dim", "an OLMoE whose heads together are not as wide as the hidden state")
    of = grouped(config, config.integer("hidden_size"), qkv_bias=bias, output_bias=bias, norm="all")
    return uniform_mixture(config, of, plain_experts(config, width="intermediate_size"))


def granitemoe(config: Config) -> Shape:
    """Granite 3 mixtures; the ``shared`` variety adds an MLP that every token passes."""
    bias = config.flag("attention_bias")
    of = grouped(config, config.integer("hidden_size"), qkv_bias=bias, output_bias=bias)
    shared = config.integer("shared_intermediate_size", default=0, least=0)
    return uniform_mixture(config, of, plain_experts(config, width="intermediate_size", shared=shared))


def phimoe(config: Config) -> Shape:
    """Layer norms with biases; the output head may have a bias as well."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias = config.flag("attention_bias")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias)
    experts = plain_experts(config, width="intermediate_size")
    blocks = stack(_windowed_layers(config, of), [(experts, 0)] * layers, norms=4 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, vectors=2 * hidden, head_bias=config.flag("lm_head_bias"))


def qwen2_moe(config: Config) -> Shape:
    """Biases on queries, keys and values; a gated shared expert; windows only if ``use_sliding_window`` is set."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    of = grouped(config, hidden, qkv_bias=config.flag("qkv_bias", default=True))
    default = ["full_attention"] * layers
    if config.flag("use_sliding_window"):
        last = config.integer("max_window_layers", least=0)
        default = [ATTENTION_KINDS[layer % 2 == 0 and layer < last] for layer in range(layers)]
    kinds = layer_list(config, "layer_types", layers=layers, known=ATTENTION_KINDS, default=default)
    if "sliding_attention" in kinds and not config.flag("use_sliding_window"):
        raise config.bad("use_sliding_window", False, "true, as layer_types names sliding layers")
    experts = plain_experts(
        config,
        width="moe_intermediate_size",
        shared=config.integer("shared_expert_intermediate_size", least=0),
        shared_gate=True,
    )
    dense = Gated(width=config.integer("intermediate_size"))
    feeds = feeds_of(sparse_steps(config, layers), dense=dense, sparse=experts)
    mixers = windowed_mixers(kinds, of, window_of(config, kinds))
    return decoder_shape(config, stack(mixers, feeds, norms=2 * hidden), hidden=hidden)


def qwen3_moe(config: Config) -> Shape:
    """Queries and keys are normalised head by head; no shared expert; a window, if switched on, is every layer's."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias = config.flag("attention_bias")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias, norm="head")
    windowed = config.flag("use_sliding_window", default=False)
    mixer = of.mixer(config.maybe_integer("sliding_window") if windowed else None)
    feeds = feeds_of(
        sparse_steps(config, layers),
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=plain_experts(config, width="moe_intermediate_size"),
    )
    return decoder_shape(config, stack([(mixer, of.vectors)] * layers, feeds, norms=2 * hidden), hidden=hidden)


def glm4_moe(config: Config) -> Shape:
    """The first layers are dense; biases on queries, keys and values only; norms on queries and keys optional."""
    return _glm4_moe(config, bias=config.flag("attention_bias"))


def sarvam_moe(config: Config) -> Shape:
    """GLM-4.5's layers; the bias of queries, keys and values goes by either of two names."""
    return _glm4_moe(config, bias=config.flag("use_qkv_bias", "attention_bias"))


def _glm4_moe(config: Config, *, bias: bool) -> Shape:
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    norm = "head" if config.flag("use_qk_norm", default=False) else ""
    of = grouped(config, hidden, qkv_bias=bias, norm=norm)
    feeds = feeds_of(
        dense_first(layers, config.integer("first_k_dense_replace", default=0, least=0)),
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=routed_experts(config, shared="n_shared_experts"),
    )
    blocks = stack([(of.mixer(), of.vectors)] * layers, feeds, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=announced_mtp(config))


def solar_open(config: Config) -> Shape:
    """As GLM-4.5, but every layer is a mixture and queries and keys are not normalised."""
    of = grouped(config, config.integer("hidden_size"), qkv_bias=config.flag("attention_bias"))
    return uniform_mixture(config, of, routed_experts(config, shared="n_shared_experts"))


def hy_v3(config: Config) -> Shape:
    """The first layer is dense; ``mlp_bias`` holds for it and the shared expert, not for the routed ones."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias, norm="head")
    kinds = layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=dense_first(layers, 1))
    inner, experts = config.integer("intermediate_size"), routed_experts(config, shared="num_shared_experts")
    feeds = feeds_of(
        kinds,
        dense=Gated(width=inner),
        sparse=experts,
        dense_vectors=mlp_biases(inner, hidden) if mlp_bias else 0,
        sparse_vectors=mlp_biases(experts.shared_width, hidden) if mlp_bias else 0,
    )
    blocks = stack([(of.mixer(), of.vectors)] * layers, feeds, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=announced_mtp(config))


def ernie4_5_moe(config: Config) -> Shape:
    """``use_bias`` is for attention, dense and shared MLPs and head; the router's correction bias is a parameter."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias = config.flag("use_bias")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias)
    start, interval = config.integer("moe_layer_start_index", least=0), config.integer("moe_layer_interval")
    end = config.integer("moe_layer_end_index", least=-1)
    end = layers - 1 if end == -1 else end
    kinds = ["sparse" if (layer + 1) % interval == 0 and start <= layer <= end else "dense" for layer in range(layers)]
    feeds = _ernie_feeds(config, kinds, hidden, width=config.integer("moe_intermediate_size"), corrections=1, bias=bias)
    blocks = stack([(of.mixer(), of.vectors)] * layers, feeds, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, head_bias=bias)


def ernie4_5_vl_moe(config: Config) -> Shape:
    """ERNIE 4.5 VL: beside each mixture for text one for images, narrower and of as many experts, which no text reads.

    The latter's weights stand as a table: they are held, and a pass over text reads none of them.
    """
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias = config.flag("use_bias")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias)
    kinds = layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=dense_first(layers, 1))
    width, seen = config.integers("moe_intermediate_size", length=2)
    feeds = _ernie_feeds(config, kinds, hidden, width=width, corrections=2, bias=bias)
    blocks = stack([(of.mixer(), of.vectors)] * layers, feeds, norms=2 * hidden)
    shape = decoder_shape(config, blocks, hidden=hidden)
    rows = kinds.count("sparse") * _ernie_experts(config) * (3 * seen + 1)
    unread = Table(name="vision-experts", rows=rows, width=hidden)
    return replace(shape, embeddings=(*shape.embeddings, unread))


def _ernie_experts(config: Config) -> int:
    return config.integer("moe_num_experts", "num_experts")


def _ernie_feeds(
    config: Config, kinds: Sequence[str], hidden: int, *, width: int, corrections: int, bias: bool
) -> list[tuple[Mlp, int]]:
    """Return each layer's MLP; the router has ``corrections`` learned numbers for each expert."""
    experts = Mixture(
        experts=_ernie_experts(config),
        experts_per_token=config.integer("moe_k", "num_experts_per_tok"),
        width=width,
        shared_width=width * config.integer("moe_num_shared_experts", least=0),
    )
    inner = config.integer("intermediate_size")
    shared_bias = mlp_biases(experts.shared_width, hidden) if bias and experts.shared_width else 0
    return feeds_of(
        kinds,
        dense=Gated(width=inner),
        sparse=experts,
        dense_vectors=mlp_biases(inner, hidden) if bias else 0,
        sparse_vectors=corrections * experts.experts + shared_bias,
    )


def hunyuan_v1_moe(config: Config) -> Shape:
    """Every layer is a mixture with one shared expert as wide as a routed one; queries and keys are normalised."""
    hidden = config.integer("hidden_size")
    bias = config.flag("attention_bias")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias, norm="head")
    width = config.integer("intermediate_size")
    for key, usual in (("moe_intermediate_size", width), ("num_shared_expert", 1)):
        if config.has(key) and _uniform(config, key) != usual:
            raise refuse(config, key, f"{key} other than {usual}")
    if config.flag("use_cla", default=False):
        raise refuse(config, "use_cla", "attention shared across layers")
    experts = Mixture(
        experts=_uniform(config, "num_experts"),
        experts_per_token=_uniform(config, "moe_topk", "num_experts_per_tok"),
        width=width,
        shared_width=width,
    )
    return uniform_mixture(config, of, experts)


def _uniform(config: Config, *keys: str) -> int:
    """Return a number that may stand as a list of equal numbers, one a layer."""
    value = config.raw(*keys)
    if isinstance(value, list) and value and all(entry == value[0] for entry in value):
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise config.bad(keys[0], value, "one positive whole number for all layers")
    return value


def minimax_m3(config: Config) -> Shape:
    """Sparse layers keep an index key a token beside keys and values, and choose blocks of tokens by it."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    if config.flag("attention_output_gate", default=False):
        raise refuse(config, "attention_output_gate", "a gate on the attention's output")
    of = grouped(config, hidden, norm="head")
    old = config.child("sparse_attention_config")
    flags = old.sequence("sparse_attention_freq", default=None)
    sparse = ["minimax_m3_sparse" if flag else "full_attention" for flag in flags]
    kinds = layer_list(
        config,
        "layer_types",
        layers=layers,
        known=("full_attention", "minimax_m3_sparse"),
        default=sparse or ["full_attention"] * layers,
    )
    mixed = ["sparse" if flag else "dense" for flag in config.sequence("moe_layer_freq", default=None)]
    mlps = layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=mixed or ["sparse"] * layers)
    for key, entries in (("sparse_attention_freq", kinds), ("moe_layer_freq", mlps)):
        if len(entries) != layers:
            raise config.bad(key, f"{len(entries)} entries", f"{layers} entries, one for each layer")
    mixers = _indexed_mixers(config, old, of, kinds)
    shared = config.integer("shared_intermediate_size", least=0)
    feeds = feeds_of(
        mlps,
        dense=Gated(width=config.integer("dense_intermediate_size")),
        sparse=plain_experts(config, width="intermediate_size", shared=shared),
    )
    return decoder_shape(config, stack(mixers, feeds, norms=2 * hidden), hidden=hidden, notes=announced_mtp(config))


def _indexed_mixers(config: Config, old: Config, of: Grouped, kinds: Sequence[str]) -> list[tuple[Mixer, int]]:
    """Return each layer's attention; the indexer's sizes may stand in ``sparse_attention_config``, by other names."""
    full = (of.mixer(), of.vectors)
    if "minimax_m3_sparse" not in kinds:
        for key in ("index_n_heads", "index_head_dim", "index_topk_blocks", "index_block_size", "index_local_blocks"):
            config.pass_over(key, "no layer of layer_types is sparse")
        return [full] * len(kinds)

    def setting(old_name: str, name: str) -> int:
        return old.integer(old_name) if old.has(old_name) else config.integer(name)

    dim = setting("sparse_index_dim", "index_head_dim")
    indexer = Indexer(
        heads=setting("sparse_num_index_heads", "index_n_heads"),
        head_dim=dim,
        top_k=setting("sparse_topk_blocks", "index_topk_blocks") * setting("sparse_block_size", "index_block_size"),
        head_weights=False,
    )
    sparse = (of.mixer(indexer=indexer), of.vectors + 2 * dim)
    return [sparse if kind == "minimax_m3_sparse" else full for kind in kinds]


RULES: dict[str, Rule] = {
    "ernie4_5_moe": ernie4_5_moe,
    "ernie4_5_vl_moe_text": ernie4_5_vl_moe,
    "flex_olmo": olmoe,
    "glm4_moe": glm4_moe,
    "glm4v_moe_text": glm4_moe,
    "granitemoe": granitemoe,
    "granitemoeshared": granitemoe,
    "hunyuan_v1_moe": hunyuan_v1_moe,
    "hy_v3": hy_v3,
    "minimax_m2": minimax_m2,
    "minimax_m3": minimax_m3,
    "minimax_m3_vl_text": minimax_m3,
    "mixtral": mixtral,
    "olmoe": olmoe,
    "phimoe": phimoe,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "qwen3_omni_moe_text": qwen3_moe,
    "qwen3_vl_moe_text": qwen3_moe,
    "sarvam_moe": sarvam_moe,
    "solar_open": solar_open,
}
