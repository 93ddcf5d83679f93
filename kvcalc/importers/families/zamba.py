"""Zamba: state layers behind transformer layers whose weights they share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Full, Gated
from kvcalc.importers.families.shape import Shape, decoder_shape, head_width, layer_kinds
from kvcalc.importers.families.states import mamba2_mixer, mamba_mixer, step_rank

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]

_ZAMBA_NAMES = {"mamba": "mamba", "linear_attention": "mamba", "hybrid": "hybrid"}


def zamba(config: Config) -> Shape:
    """Mamba-1 layers, some of them behind one transformer layer whose weights they all share.

    The shared layer reads the hidden state beside the embeddings (twice the width) and keeps a cache for each use.
    """
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    layers = config.integer("num_hidden_layers")
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", least=0)
    default = ["mamba", "mamba", "hybrid"]
    default += ["hybrid" if layer % period == offset else "mamba" for layer in range(layers - 3)]
    kinds = layer_kinds(config, "layers_block_type", "layer_types", names=_ZAMBA_NAMES, layers=layers, default=default)
    state, vectors = mamba_mixer(
        hidden,
        int(config.number("mamba_expand") * hidden),
        states=config.integer("mamba_d_state"),
        kernel=config.integer("mamba_d_conv"),
        rank=step_rank(config, "mamba_dt_rank", hidden),
        conv_bias=config.flag("mamba_conv_bias"),
        bias=config.flag("mamba_proj_bias"),
    )
    plain = Block(name="mamba", mixers=(state,), vector_parameters=hidden + vectors)
    blocks = _with_shared(config, kinds, plain, hidden=hidden, inner=inner, copies=1, matrices=hidden * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def zamba2(config: Config) -> Shape:
    """Mamba-2 layers, some of them behind one of a few shared transformer layers, taken in turn.

    Every use of a shared layer has low-rank adapters of its own on the MLP, and where the config says so on the
    projections of the attention too. Heads are twice as wide as hidden / heads, as in Zamba.
    """
    hidden = config.integer("hidden_size")
    inner = config.integer_or(4 * hidden, "intermediate_size", "ffn_hidden_size")
    expanded = int(config.number("mamba_expand") * hidden)
    bias = config.flag("add_bias_linear")
    count = expanded // config.integer("mamba_headdim") if _widths_only(config) else config.integer("n_mamba_heads")
    state, vectors = mamba2_mixer(
        hidden,
        state_heads=count,
        head_dim=expanded // count,
        groups=config.integer("mamba_ngroups"),
        states=config.integer("mamba_d_state", "state_size"),
        kernel=config.integer("mamba_d_conv", "conv_dimension"),
        conv_bias=True,
        in_bias=bias,
        out_bias=bias,
    )
    default = (["mamba"] * 6 + ["hybrid"] + (["mamba"] * 5 + ["hybrid"]) * 6) + ["mamba"] * 4
    default += ["hybrid"] + ["mamba"] * 3 + ["hybrid"] + ["mamba"] * 2
    layers = config.integer("num_hidden_layers")
    if len(default) != layers and not (config.has("layers_block_type") or config.has("layer_types")):
        raise config.bad("num_hidden_layers", layers, f"{len(default)}, and layers_block_type is missing")
    kinds = layer_kinds(config, "layers_block_type", "layer_types", names=_ZAMBA_NAMES, layers=layers, default=default)
    config.pass_over("kv_channels", "attention_head_dim gives the width of a head")
    config.pass_over("num_query_groups", "num_key_value_heads gives the heads of keys and values")
    rank = config.integer("adapter_rank", "lora_rank")
    adapters = rank * (hidden + 2 * inner)
    if config.flag("use_shared_attention_adapter", "use_shared_attention_lora"):
        adapters += 3 * 2 * rank * 2 * hidden
    plain = Block(name="mamba", mixers=(state,), vector_parameters=hidden + vectors)
    blocks = _with_shared(
        config,
        kinds,
        plain,
        hidden=hidden,
        inner=inner,
        copies=config.integer("num_mem_blocks"),
        matrices=hidden * hidden + adapters,
        biases=2 * inner + hidden if bias else 0,
    )
    # the class builds adapters for each layer of hybrid_layer_ids, of which a config cut short has too many
    uses = kinds.count("hybrid")
    idle = max(0, len(config.sequence("hybrid_layer_ids", default=None)) - uses) * adapters
    return decoder_shape(config, blocks, hidden=hidden, vectors=hidden + idle)


def _widths_only(config: Config) -> bool:
    """Return whether the config gives the width of the state heads and not their number."""
    return config.has("mamba_headdim") and not config.has("n_mamba_heads")


def _with_shared(
    config: Config,
    kinds: list[str],
    plain: Block,
    *,
    hidden: int,
    inner: int,
    copies: int,
    matrices: int,
    biases: int = 0,
) -> tuple[Block, ...]:
    """Return Mamba layers, the hybrid ones with a transformer layer before them that only the first ``copies`` hold."""
    query = config.integer("num_attention_heads")
    inputs = config.integer_or(2 * hidden, "attention_hidden_size")
    attention = Full(
        heads=query,
        kv_heads=config.integer_or(query, "num_key_value_heads"),
        head_dim=head_width(config, 2 * hidden, query, "attention_head_dim"),
        inputs=inputs,
    )
    holder = Block(
        name="hybrid",
        mixers=(attention, *plain.mixers),
        mlp=Gated(width=inner),
        matrix_parameters=matrices,
        vector_parameters=plain.vector_parameters + inputs + hidden + biases,
    )
    follower = replace(
        holder,
        name="hybrid-shared",
        mixers=(replace(attention, shared_weights=True), *plain.mixers),
        mlp=Gated(width=inner, shared_weights=True),
        vector_parameters=plain.vector_parameters,
    )
    blocks, hybrids = [], 0
    for kind in kinds:
        blocks.append(plain if kind == "mamba" else holder if hybrids < copies else follower)
        hybrids += kind == "hybrid"
    return tuple(blocks)


RULES: dict[str, Rule] = {
    "zamba": zamba,
    "zamba2": zamba2,
}
