"""Decoders of the GPT line: layer norms with biases, an MLP of two matrices, often a table of learned positions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import ProfileError
from kvcalc.core.model import Block, Full, Table
from kvcalc.importers.families.shape import attention_biases, decoder_shape, mlp, mlp_biases, refuse

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule, Shape

__all__ = ["RULES"]


def _layers(
    hidden: int,
    count: int,
    *,
    heads: tuple[int, int],
    inner: int,
    vectors: int,
    biases: tuple[bool, bool, bool] = (True, True, True),
    width: int | None = None,
    parallel: bool = False,
) -> tuple[Block, ...]:
    """Return equal layers.

    Args:
        hidden: width of the hidden state.
        count: number of layers.
        heads: query heads and KV heads.
        inner: inner width of the MLP.
        vectors: vector elements of a layer besides the biases.
        biases: whether queries, keys and values, the attention's output, and the MLP have biases.
        width: width of a head; an equal part of the hidden state where left out.
        parallel: whether attention and MLP read the same input.
    """
    query, kv = heads
    if width is None and hidden % query:
        raise ProfileError(f"a hidden size of {hidden} does not divide into {query} heads")
    width = hidden // query if width is None else width
    inputs, output, in_mlp = biases
    vectors += attention_biases(query, kv, width, hidden, inputs=inputs, output=output)
    vectors += mlp_biases(inner, hidden, gated=False) if in_mlp else 0
    block = Block(
        name="decoder",
        mixers=(Full(heads=query, kv_heads=kv, head_dim=width),),
        mlp=mlp(inner, gated=False),
        parallel=parallel,
        vector_parameters=vectors,
    )
    return (block,) * count


def _with_positions(shape: Shape, rows: int, *, width: int, limit: int) -> Shape:
    """Return the shape with a table of learned positions, and the context limit that follows from it."""
    table = Table(name="position", rows=rows, width=width)
    return replace(shape, embeddings=(*shape.embeddings, table), context_limit=limit)


def _gpt2_sizes(config: Config) -> tuple[int, int, int, int]:
    """Return width, layers, heads and inner width by the short names of GPT-2's config."""
    hidden = config.integer("n_embd", "hidden_size")
    inner = config.integer_or(4 * hidden, "n_inner")
    layers, heads = config.integer("n_layer", "num_hidden_layers"), config.integer("n_head", "num_attention_heads")
    return hidden, layers, heads, inner


def _alone(config: Config) -> None:
    """Refuse a decoder that also attends to an encoder."""
    if config.flag("add_cross_attention", default=False):
        raise refuse(config, "add_cross_attention", f"a {config.text('model_type')} with cross-attention")


def gpt2(config: Config) -> Shape:
    """GPT-2: learned positions, biases everywhere.

    ``multi_query`` (GPT-BigCode) or a ``multiquery`` type of heads (SantaCoder's own code) leaves one KV head.
    """
    _alone(config)
    hidden, layers, heads, inner = _gpt2_sizes(config)
    kind = config.text("attention_head_type", default="multihead")
    config.choice(kind, ("multihead", "multiquery"), key="attention_head_type", what="the type of heads")
    kv = 1 if config.flag("multi_query", default=False) or kind == "multiquery" else heads
    blocks = _layers(hidden, layers, heads=(heads, kv), inner=inner, vectors=4 * hidden)
    positions = config.integer("n_positions", "max_position_embeddings")
    shape = decoder_shape(config, blocks, hidden=hidden, vectors=2 * hidden)
    return _with_positions(shape, positions, width=hidden, limit=positions)


def openai_gpt(config: Config) -> Shape:
    """GPT-1: norms after attention and MLP, none at the end; its class keeps no cache, so that no mixer stands here."""
    hidden, layers, heads, _ = _gpt2_sizes(config)
    block, *_rest = _layers(hidden, layers, heads=(heads, heads), inner=4 * hidden, vectors=4 * hidden)
    block = replace(block, mixers=(), matrix_parameters=4 * hidden * hidden)
    notes = ("its class keeps no cache: each token takes a pass over the whole text",)
    shape = decoder_shape(config, (block,) * layers, hidden=hidden, vectors=0, notes=notes)
    positions = config.integer("n_positions", "max_position_embeddings")
    return _with_positions(shape, positions, width=hidden, limit=positions)


def ctrl(config: Config) -> Shape:
    """CTRL: computed positions, biases everywhere, in the head too."""
    hidden, layers, heads = (config.integer(key) for key in ("n_embd", "n_layer", "n_head"))
    blocks = _layers(hidden, layers, heads=(heads, heads), inner=config.integer("dff"), vectors=4 * hidden)
    shape = decoder_shape(config, blocks, hidden=hidden, vectors=2 * hidden, head_bias=True)
    return replace(shape, context_limit=config.maybe_integer("n_positions"))


def gptj(config: Config) -> Shape:
    """GPT-J and CodeGen: rotary positions, attention and MLP side by side behind one norm, a head with a bias."""
    hidden, layers, heads, inner = _gpt2_sizes(config)
    blocks = _layers(
        hidden,
        layers,
        heads=(heads, heads),
        inner=inner,
        vectors=2 * hidden,
        biases=(False, False, True),
        parallel=True,
    )
    shape = decoder_shape(config, blocks, hidden=hidden, vectors=2 * hidden, head_bias=True)
    return replace(shape, context_limit=config.maybe_integer("n_positions", "max_position_embeddings"))


def gpt_neo(config: Config) -> Shape:
    """GPT-Neo: every other layer attends to a window, but the reference code caches all layers whole."""
    hidden = config.integer("hidden_size")
    layers = config.integer("num_layers", "num_hidden_layers")
    _check_attention_types(config, layers)
    query = config.integer("num_heads", "num_attention_heads")
    blocks = _layers(
        hidden,
        layers,
        heads=(query, query),
        inner=config.integer_or(4 * hidden, "intermediate_size"),
        vectors=4 * hidden,
        biases=(False, True, True),
    )
    notes = ("layers with local attention are cached and counted whole, as the reference code does",)
    shape = decoder_shape(config, blocks, hidden=hidden, vectors=2 * hidden, notes=notes)
    positions = config.integer("max_position_embeddings")
    return _with_positions(shape, positions, width=hidden, limit=positions)


def _check_attention_types(config: Config, layers: int) -> None:
    """Check the list of (kinds, repeats) that says which layers are local."""
    config.pass_over("attention_layers", "attention_types says the same, and every layer is cached whole")
    count = 0
    for entry in config.sequence("attention_types", default=None):
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], list):  # noqa: PLR2004
            raise config.bad("attention_types", entry, "a list of kinds and how often they repeat")
        kinds, repeats = entry
        if isinstance(repeats, bool) or not isinstance(repeats, int):
            raise config.bad("attention_types", repeats, "how often the kinds repeat")
        for kind in kinds:
            config.choice(str(kind), ("global", "local"), key="attention_types", what="the attention type")
        count += len(kinds) * repeats
    if count not in (0, layers):
        raise config.bad("attention_types", f"{count} entries", f"{layers} entries, one for each layer")


def gpt_neox(config: Config) -> Shape:
    """GPT-NeoX and Pythia: rotary positions, two norms even where attention and MLP run side by side."""
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    bias = config.flag("attention_bias", default=True)
    blocks = _layers(
        hidden,
        config.integer("num_hidden_layers"),
        heads=(query, query),
        inner=config.integer("intermediate_size"),
        vectors=4 * hidden,
        biases=(bias, bias, True),
        parallel=config.flag("use_parallel_residual", default=True),
    )
    return decoder_shape(config, blocks, hidden=hidden, vectors=2 * hidden)


def gpt_neox_japanese(config: Config) -> Shape:
    """GPT-NeoX Japanese: no biases but one after the last layer's attention."""
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    inner = int(hidden * config.number("intermediate_multiple_size", default=4))
    *blocks, last = _layers(
        hidden,
        config.integer("num_hidden_layers"),
        heads=(query, query),
        inner=inner,
        vectors=4 * hidden,
        biases=(False, False, False),
    )
    last = replace(last, name="last", vector_parameters=last.vector_parameters + hidden)
    return decoder_shape(config, (*blocks, last), hidden=hidden, vectors=2 * hidden)


def opt(config: Config) -> Shape:
    """OPT: learned positions with two rows more than positions, and possibly a token table narrower than the layers."""
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    narrow = config.integer_or(hidden, "word_embed_proj_dim")
    bias = config.flag("enable_bias", default=True)
    norm = 2 * hidden if config.flag("layer_norm_elementwise_affine", default=True) else 0
    blocks = _layers(
        hidden,
        config.integer("num_hidden_layers"),
        heads=(query, query),
        inner=config.integer("ffn_dim"),
        vectors=2 * norm,
        biases=(bias, bias, bias),
    )
    before = config.flag("do_layer_norm_before", default=True)
    removed = config.flag("_remove_final_layer_norm", default=False)
    shape = decoder_shape(config, blocks, hidden=hidden, vectors=norm if before and not removed else 0)
    if narrow != hidden:
        tokens = replace(shape.embeddings[0], width=narrow)
        head = None if shape.head is None else replace(shape.head, width=narrow)
        shape = replace(shape, embeddings=(tokens,), head=head, matrix_parameters=2 * hidden * narrow)
    positions = config.integer("max_position_embeddings")
    return _with_positions(shape, positions + 2, width=hidden, limit=positions)


def xglm(config: Config) -> Shape:
    """XGLM: computed positions, biases everywhere."""
    _alone(config)
    hidden = config.integer("d_model", "hidden_size")
    query = config.integer("attention_heads", "num_attention_heads")
    layers = config.integer("num_layers", "num_hidden_layers")
    inner = config.integer("ffn_dim")
    blocks = _layers(hidden, layers, heads=(query, query), inner=inner, vectors=4 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, vectors=2 * hidden)


def biogpt(config: Config) -> Shape:
    """BioGPT: learned positions with two rows more than positions, biases everywhere."""
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    layers, inner = config.integer("num_hidden_layers"), config.integer("intermediate_size")
    blocks = _layers(hidden, layers, heads=(query, query), inner=inner, vectors=4 * hidden)
    positions = config.integer("max_position_embeddings")
    shape = decoder_shape(config, blocks, hidden=hidden, vectors=2 * hidden)
    return _with_positions(shape, positions + 2, width=hidden, limit=positions)


def bloom(config: Config) -> Shape:
    """BLOOM: ALiBi positions, a norm on the embeddings, an MLP four times as wide, biases everywhere."""
    hidden = config.integer("n_embed", "hidden_size")
    query = config.integer("n_head", "num_attention_heads")
    layers = config.integer("n_layer", "num_hidden_layers")
    blocks = _layers(hidden, layers, heads=(query, query), inner=4 * hidden, vectors=4 * hidden)
    shape = decoder_shape(config, blocks, hidden=hidden, vectors=4 * hidden)
    return replace(shape, context_limit=config.maybe_integer("seq_length"))


def falcon(config: Config) -> Shape:
    """Falcon: one KV head (7B), a head for each query head (RW), or ``num_kv_heads`` in the new architecture (40B)."""
    hidden = config.integer("n_embed", "hidden_size")
    query = config.integer("num_attention_heads", "n_head")
    new, bias = config.flag("new_decoder_architecture", default=False), config.flag("bias", default=False)
    kv = 1 if config.flag("multi_query", default=True) else query
    if new:
        kv = config.integer_or(query, "num_kv_heads", "n_head_kv")
    for key in ("num_kv_heads", "n_head_kv"):
        config.pass_over(key, "only the new architecture has a number of KV heads of its own")
    parallel = config.flag("parallel_attn", default=True)
    norms = config.integer_or(2 if new else 1, "num_ln_in_parallel_attn")
    blocks = _layers(
        hidden,
        config.integer("num_hidden_layers", "n_layer"),
        heads=(query, kv),
        inner=config.integer_or(4 * hidden, "ffn_hidden_size"),
        vectors=2 * hidden * (2 if norms == 2 or not parallel else 1),  # noqa: PLR2004  the reference code asks for 2
        biases=(bias, bias, bias),
        parallel=parallel,
    )
    return decoder_shape(config, blocks, hidden=hidden, vectors=2 * hidden)


def phi(config: Config) -> Shape:
    """Phi-1 and Phi-2: attention and MLP side by side behind one norm, biases everywhere, in the head too."""
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    normed = config.flag("qk_layernorm", default=False)
    blocks = _layers(
        hidden,
        config.integer("num_hidden_layers"),
        heads=(query, config.integer_or(query, "num_key_value_heads")),
        inner=config.integer("intermediate_size"),
        vectors=2 * hidden + (4 * (hidden // query) if normed else 0),
        width=config.maybe_integer("head_dim"),
        parallel=True,
    )
    return decoder_shape(config, blocks, hidden=hidden, vectors=2 * hidden, head_bias=True)


def persimmon(config: Config) -> Shape:
    """Persimmon: squared ReLU, biases everywhere but in the head, norms on queries and keys."""
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    layers, inner = config.integer("num_hidden_layers"), config.integer("intermediate_size")
    vectors = 4 * hidden + (4 * (hidden // query) if config.flag("qk_layernorm", default=True) else 0)
    blocks = _layers(hidden, layers, heads=(query, query), inner=inner, vectors=vectors)
    return decoder_shape(config, blocks, hidden=hidden, vectors=2 * hidden)


def mpt(config: Config) -> Shape:
    """MPT: ALiBi positions, no biases at all; variants that the reference code leaves out are refused."""
    hidden, query = config.integer("d_model", "hidden_size"), config.integer("n_heads", "num_attention_heads")
    attention = config.child("attn_config")
    kind = attention.text("attn_type", default="multihead_attention")
    attention.choice(kind, ("multihead_attention",), key="attn_type", what="the attention type")
    for part, key, wanted in ((attention, "qk_ln", False), (attention, "alibi", True), (config, "no_bias", True)):
        if part.flag(key, default=wanted) is not wanted:
            raise refuse(part, key, f"an MPT with {key} {str(not wanted).lower()}")
    if config.number("expansion_ratio", default=4) != 4:  # noqa: PLR2004
        raise refuse(config, "expansion_ratio", "an MPT whose MLP is not four times as wide as the hidden state")
    layers = config.integer("n_layers", "num_hidden_layers")
    blocks = _layers(
        hidden, layers, heads=(query, query), inner=4 * hidden, vectors=2 * hidden, biases=(False, False, False)
    )
    shape = decoder_shape(config, blocks, hidden=hidden)
    return replace(shape, context_limit=config.maybe_integer("max_seq_len"))


RULES: dict[str, Rule] = {
    "biogpt": biogpt,
    "bloom": bloom,
    "codegen": gptj,
    "ctrl": ctrl,
    "falcon": falcon,
    "gpt-sw3": gpt2,
    "gpt2": gpt2,
    "gpt_bigcode": gpt2,
    "gpt_neo": gpt_neo,
    "gpt_neox": gpt_neox,
    "gpt_neox_japanese": gpt_neox_japanese,
    "gptj": gptj,
    "mpt": mpt,
    "openai-gpt": openai_gpt,
    "opt": opt,
    "persimmon": persimmon,
    "phi": phi,
    "xglm": xglm,
}
