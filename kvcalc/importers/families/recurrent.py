"""Recurrent models and their hybrids: Mamba, Mamba-2, RG-LRU, RWKV, xLSTM."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Full, Gated, Head, Mixture, Sliding, State
from kvcalc.core.units import ceil_div
from kvcalc.importers.families.shape import (
    Shape,
    attention_biases,
    decoder_shape,
    heads,
    hybrid_layers,
    layer_kinds,
    mlp,
    mlp_biases,
    mtp_notes,
    note_order,
)
from kvcalc.importers.families.states import mamba2_mixer, mamba_mixer, requested_format, step_rank

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer, Mlp
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]

_KINDS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
}


def mamba(config: Config) -> Shape:
    """Mamba-1 layers without an MLP, FalconMamba's included: the norms that it adds have no weights."""
    hidden = config.integer("hidden_size")
    inner = config.integer_or(int(config.number("expand") * hidden), "intermediate_size")
    state, vectors = mamba_mixer(
        hidden,
        inner,
        states=config.integer("state_size"),
        kernel=config.integer("conv_kernel"),
        rank=step_rank(config, "time_step_rank", hidden),
        conv_bias=config.flag("use_conv_bias"),
        bias=config.flag("use_bias"),
    )
    block = Block(name="mamba", mixers=(state,), vector_parameters=hidden + vectors)
    return decoder_shape(config, (block,) * config.integer("num_hidden_layers"), hidden=hidden)


def mamba2(config: Config) -> Shape:
    """Mamba-2 layers without an MLP."""
    hidden = config.integer("hidden_size")
    count = config.integer("num_heads")
    width = _head_width(config, "head_dim", inner=int(config.number("expand") * hidden), count=count)
    bias = config.flag("use_bias")
    state, vectors = mamba2_mixer(
        hidden,
        state_heads=count,
        head_dim=width,
        groups=config.integer("n_groups"),
        states=config.integer("state_size"),
        kernel=config.integer("conv_kernel"),
        conv_bias=config.flag("use_conv_bias"),
        in_bias=bias,
        out_bias=bias,
    )
    block = Block(name="mamba", mixers=(state,), vector_parameters=hidden + vectors)
    return decoder_shape(config, (block,) * config.integer("num_hidden_layers"), hidden=hidden)


def _head_width(config: Config, key: str, *, inner: int, count: int) -> int:
    """Return the width of a state head, which together must make up the inner width."""
    value = config.raw(key, default="auto")
    width = inner // count if value == "auto" or value is None else config.integer(key)
    if width * count != inner:
        raise config.bad(key, width, f"{inner} / {count} heads")
    return width


def jamba(config: Config) -> Shape:
    """Mamba-1 (step, input and output normalised), attention every few layers and a mixture of experts every few."""
    hidden = config.integer("hidden_size")
    query, kv, width = heads(config, hidden=hidden)
    inner = config.integer("intermediate_size")
    states, rank = config.integer("mamba_d_state"), step_rank(config, "mamba_dt_rank", hidden)
    state, vectors = mamba_mixer(
        hidden,
        int(config.number("mamba_expand") * hidden),
        states=states,
        kernel=config.integer("mamba_d_conv"),
        rank=rank,
        conv_bias=config.flag("mamba_conv_bias"),
        bias=config.flag("mamba_proj_bias"),
    )
    experts = config.integer("num_experts", "num_local_experts", least=0)
    mlps: dict[str, tuple[Mlp | None, int]] = {"dense": (mlp(inner), 0)}
    if experts > 1:
        chosen = config.integer("num_experts_per_tok")
        mlps["moe"] = Mixture(experts=experts, experts_per_token=chosen, width=inner), 0
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", least=0)
    expert_period, expert_offset = config.integer("expert_layer_period"), config.integer("expert_layer_offset", least=0)
    layers = [
        (
            "attention" if layer % period == offset else "mamba",
            "moe" if experts > 1 and layer % expert_period == expert_offset else "dense",
        )
        for layer in range(config.integer("num_hidden_layers"))
    ]
    attention = Full(heads=query, kv_heads=kv, head_dim=width)
    mixers: dict[str, tuple[Mixer, int]] = {
        "attention": (attention, 0),
        "mamba": (state, vectors + rank + 2 * states),
    }
    return decoder_shape(config, hybrid_layers(mixers, mlps, layers, norms=2 * hidden), hidden=hidden)


def _mamba2_of_hybrid(config: Config, hidden: int, *, inner: int, out_bias: str, norm: bool) -> tuple[State, int]:
    """Return a Mamba-2 mixer by the keys that Bamba, Granite 4 and Falcon-H1 have in common."""
    count = config.integer("mamba_n_heads")
    return mamba2_mixer(
        hidden,
        state_heads=count,
        head_dim=_head_width(config, "mamba_d_head", inner=inner, count=count),
        groups=config.integer("mamba_n_groups"),
        states=config.integer("mamba_d_state"),
        kernel=config.integer("mamba_d_conv"),
        conv_bias=config.flag("mamba_conv_bias"),
        in_bias=config.flag("mamba_proj_bias"),
        out_bias=config.flag(out_bias),
        norm=norm,
    )


def _attention_of_hybrid(config: Config, hidden: int) -> tuple[Full, int]:
    query, kv, width = heads(config, hidden=hidden)
    bias = config.flag("attention_bias")
    attention = Full(heads=query, kv_heads=kv, head_dim=width)
    return attention, attention_biases(query, kv, width, hidden, inputs=bias, output=bias)


def bamba(config: Config) -> Shape:
    """Mamba-2 with attention in the layers that ``attn_layer_indices`` lists, and an MLP in every layer."""
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    expanded = int(config.number("mamba_expand") * hidden)
    mixers: dict[str, tuple[Mixer, int]] = {
        "mamba": _mamba2_of_hybrid(config, hidden, inner=expanded, out_bias="mamba_proj_bias", norm=True),
        "attention": _attention_of_hybrid(config, hidden),
    }
    attended = config.sequence("attn_layer_indices", default=None)
    layers = [
        ("attention" if layer in attended else "mamba", "mlp") for layer in range(config.integer("num_hidden_layers"))
    ]
    note_order(config, "attn_layer_indices", [kind for kind, _ in layers])
    biases = mlp_biases(inner, hidden) if config.flag("mlp_bias") else 0
    blocks = hybrid_layers(mixers, {"mlp": (mlp(inner), biases)}, layers, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def granite_hybrid(config: Config) -> Shape:
    """Granite 4: Mamba-2 or attention, then a shared MLP beside a mixture of experts (which small models lack)."""
    hidden, shared = config.integer("hidden_size"), config.integer("shared_intermediate_size", least=0)
    expanded = int(config.number("mamba_expand") * hidden)
    mixers: dict[str, tuple[Mixer, int]] = {
        "mamba": _mamba2_of_hybrid(config, hidden, inner=expanded, out_bias="mamba_proj_bias", norm=True),
        "attention": _attention_of_hybrid(config, hidden),
    }
    experts = config.integer("num_local_experts", least=0)
    feed: Mlp = Gated(width=shared)
    if experts:
        chosen, width = config.integer("num_experts_per_tok"), config.integer("intermediate_size")
        feed = Mixture(experts=experts, experts_per_token=chosen, width=width, shared_width=shared)
    count = config.integer("num_hidden_layers")
    default = ["mamba"] * count
    kinds = layer_kinds(config, "layer_types", "layers_block_type", names=_KINDS, layers=count, default=default)
    blocks = hybrid_layers(mixers, {"mlp": (feed, 0)}, [(kind, "mlp") for kind in kinds], norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def falcon_h1(config: Config) -> Shape:
    """Attention and Mamba-2 side by side in every layer: both a cache that grows and a state."""
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    expanded = config.integer_or(int(config.number("mamba_expand") * hidden), "mamba_d_ssm")
    norm = config.flag("mamba_rms_norm")
    state, state_vectors = _mamba2_of_hybrid(config, hidden, inner=expanded, out_bias="projectors_bias", norm=norm)
    attention, biases = _attention_of_hybrid(config, hidden)
    block = Block(
        name="attention+mamba",
        mixers=(state, attention),
        mlp=mlp(inner),
        vector_parameters=2 * hidden
        + state_vectors
        + biases
        + (mlp_biases(inner, hidden) if config.flag("mlp_bias") else 0),
    )
    return decoder_shape(config, (block,) * config.integer("num_hidden_layers"), hidden=hidden)


_NEMOTRON_CHARACTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NEMOTRON_NAMES = {**_KINDS, "mlp": "mlp", "moe": "moe"}


def nemotron_h(config: Config) -> Shape:
    """Layers of one part each: Mamba-2, attention, an ungated MLP or a mixture of ungated experts, in any order.

    The order stands in ``hybrid_override_pattern`` (a character a layer) or in ``layers_block_type``; these also say
    how many layers there are. Experts may work in a narrower space (``moe_latent_size``) between shared projections.
    """
    hidden = config.integer("hidden_size")
    kinds = _nemotron_kinds(config)
    made = {kind: _nemotron_block(config, kind, hidden) for kind in dict.fromkeys(kinds)}
    blocks = tuple(made[kind] for kind in kinds)
    notes = mtp_notes(config, "num_nextn_predict_layers")
    shape = decoder_shape(config, blocks, hidden=hidden, notes=notes)
    return replace(shape, head=Head(rows=config.integer("vocab_size")))


def _nemotron_kinds(config: Config) -> list[str]:
    listed = next((key for key in ("layers_block_type", "layer_types") if config.has(key)), None)
    if listed is not None:
        config.pass_over("hybrid_override_pattern", f"{listed} gives the layers' kinds")
        return layer_kinds(config, listed, names=_NEMOTRON_NAMES, layers=None)
    key, known = "hybrid_override_pattern", tuple(_NEMOTRON_CHARACTERS)
    pattern = config.text(key)
    if not pattern:
        raise config.bad(key, pattern, "a character for each layer")
    return [_NEMOTRON_CHARACTERS[config.choice(mark, known, key=key, what="the layer")] for mark in pattern]


def _nemotron_block(config: Config, kind: str, hidden: int) -> Block:
    if kind == "mamba":
        bias = config.flag("use_bias")
        state, vectors = mamba2_mixer(
            hidden,
            state_heads=config.integer("mamba_num_heads"),
            head_dim=config.integer("mamba_head_dim"),
            groups=config.integer("mamba_n_groups", "n_groups"),
            states=config.integer("ssm_state_size"),
            kernel=config.integer("mamba_d_conv", "conv_kernel"),
            conv_bias=config.flag("mamba_conv_bias", "use_conv_bias"),
            in_bias=bias,
            out_bias=bias,
        )
        state = replace(state, requested_format=requested_format(config, "mamba_ssm_cache_dtype"))
        return Block(name=kind, mixers=(state,), vector_parameters=hidden + vectors)
    if kind == "attention":
        query = config.integer("num_attention_heads")
        kv = config.integer_or(query, "num_key_value_heads")
        width = config.integer("head_dim", "attention_head_dim")
        return Block(name=kind, mixers=(Full(heads=query, kv_heads=kv, head_dim=width),), vector_parameters=hidden)
    bias = config.flag("mlp_bias")
    if kind == "mlp":
        inner = config.integer("intermediate_size")
        vectors = mlp_biases(inner, hidden, gated=False) if bias else 0
        return Block(name=kind, mlp=mlp(inner, gated=False), vector_parameters=hidden + vectors)
    shared, latent = config.integer("moe_shared_expert_intermediate_size"), config.maybe_integer("moe_latent_size")
    experts = Mixture(
        experts=config.integer("n_routed_experts", "num_local_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=config.integer("moe_intermediate_size"),
        gated=False,
        shared_width=shared,
        inputs=latent,
    )
    vectors = mlp_biases(shared, hidden, gated=False) + (latent + hidden if latent else 0) if bias else 0
    return Block(name=kind, mlp=experts, vector_parameters=hidden + vectors)


def recurrent_gemma(config: Config) -> Shape:
    """Griffin: linear recurrent units with block-diagonal gates, and attention over a window; the kinds repeat in turn.

    The reference code keeps one column less of the convolution than its kernel is wide.

    Source: De et al. 2024, arXiv 2402.19427.
    """
    hidden, lru = config.integer("hidden_size"), config.integer_or(config.integer("hidden_size"), "lru_width")
    query, kv, width = heads(config, hidden=hidden)
    inner, kernel = config.integer("intermediate_size") // 2, config.integer("conv1d_width")
    if lru % query:
        raise config.bad("lru_width", lru, f"a multiple of {query} heads")
    gates = 2 * query * (lru // query)
    unit = State(
        variant="rg_lru",
        heads=lru,
        key_dim=1,
        value_dim=1,
        conv_channels=lru,
        conv_window=kernel - 1,
        conv_kernel=kernel,
        recurrent_format="fp32",
        matrix_parameters=3 * hidden * lru + gates * (lru // query),
    )
    local = Sliding(heads=query, kv_heads=kv, head_dim=width, window=config.integer("attention_window_size"))
    biases = attention_biases(query, kv, width, hidden, inputs=config.flag("attention_bias"), output=True)
    mixers: dict[str, tuple[Mixer, int]] = {
        "recurrent": (unit, 2 * lru + hidden + lru * (kernel + 1) + lru + gates),
        "local": (local, biases),
    }
    names = {"recurrent": "recurrent", "attention": "local"}
    if config.has("block_types"):
        config.pass_over("_block_types", "block_types says it")
    pattern = layer_kinds(config, "block_types", "_block_types", names=names, layers=None)
    layers = [(pattern[layer % len(pattern)], "mlp") for layer in range(config.integer("num_hidden_layers"))]
    feed = mlp(inner), mlp_biases(inner, hidden)
    return decoder_shape(config, hybrid_layers(mixers, {"mlp": feed}, layers, norms=2 * hidden), hidden=hidden)


def rwkv(config: Config) -> Shape:
    """RWKV-4: three numbers of state for each channel, and the last token's input to both halves of a layer.

    The first layer also normalises the embeddings.

    Source: Peng et al. 2023, arXiv 2305.13048, section 3.
    """
    hidden = config.integer("hidden_size")
    width = config.integer_or(hidden, "attention_hidden_size")
    inner = config.integer_or(4 * hidden, "intermediate_size")
    state = State(
        variant="rwkv",
        heads=width,
        key_dim=1,
        value_dim=3,
        conv_channels=2 * hidden,
        conv_window=1,
        conv_kernel=2,
        recurrent_format="fp32",
        matrix_parameters=4 * hidden * width,
    )
    block = Block(
        name="rwkv",
        mixers=(state,),
        mlp=mlp(inner, gated=False),
        matrix_parameters=hidden * hidden,
        vector_parameters=4 * hidden + 2 * width + 5 * hidden,
    )
    first = replace(block, name="rwkv-first", vector_parameters=block.vector_parameters + 2 * hidden)
    blocks = (first,) + (block,) * (config.integer("num_hidden_layers") - 1)
    shape = decoder_shape(config, blocks, hidden=hidden, vectors=2 * hidden)
    return replace(shape, context_limit=config.maybe_integer("context_length", "max_position_embeddings"))


def xlstm(config: Config) -> Shape:
    """The xLSTM with matrix memories: a matrix for each head, a vector that normalises it (one column more), a scale.

    The model also counts the tokens seen, in one number of 8 bytes.

    Source: Beck et al. 2024, arXiv 2405.04517, section 2.3.
    """
    hidden, count = config.integer("hidden_size", "embedding_dim"), config.integer("num_heads")
    keys, values = (int(hidden * config.number(f"{side}_dim_factor")) for side in ("qk", "v"))
    multiple = config.integer("ffn_round_up_to_multiple_of")
    inner = int((hidden * config.number("ffn_proj_factor") + multiple - 1) // multiple * multiple)
    state = State(
        variant="xlstm",
        heads=count,
        key_dim=ceil_div(keys, 64) * 64 // count,
        value_dim=ceil_div(values, 64) * 64 // count + 1,
        extra_state_bytes=2 * count,
        matrix_parameters=hidden * (2 * keys + 3 * values + 2 * count),
    )
    vectors = 2 * hidden + 2 * count + values
    if config.flag("use_bias"):
        vectors += 2 * keys + 3 * values + hidden + 2 * inner + hidden + 2 * hidden
    block = Block(name="xlstm", mixers=(state,), mlp=mlp(inner), vector_parameters=vectors)
    first = replace(block, name="xlstm-first", mixers=(replace(state, extra_state_bytes=state.extra_state_bytes + 8),))
    blocks = (first,) + (block,) * (config.integer("num_blocks", "num_hidden_layers") - 1)
    return replace(decoder_shape(config, blocks, hidden=hidden), head=Head(rows=config.integer("vocab_size")))


RULES: dict[str, Rule] = {
    "bamba": bamba,
    "falcon_h1": falcon_h1,
    "falcon_mamba": mamba,
    "granitemoehybrid": granite_hybrid,
    "jamba": jamba,
    "mamba": mamba,
    "mamba2": mamba2,
    "nemotron_h": nemotron_h,
    "recurrent_gemma": recurrent_gemma,
    "rwkv": rwkv,
    "xlstm": xlstm,
}
