"""Models that attend to an encoder's output: T5, BART and its kin, Whisper, Moonshine, T5Gemma, Llama 3.2 Vision."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcalc.core.model import Block, Cross, Encoder, Full, Head, Mixture, Table
from kvcalc.importers.families.shape import (
    Shape,
    attention_biases,
    decoder_shape,
    head_width,
    heads,
    hybrid_layers,
    layer_kinds,
    mlp,
    mlp_biases,
    refuse,
    windowed,
)

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]


def _input_note(tokens: int, what: str = "tokens") -> str:
    return f"cross-attention is counted for an input of {tokens} {what}"


def t5(config: Config, *, position_tables: int = 1) -> Shape:
    """T5, mT5 and (with a table of position biases in every layer) UMT5.

    Only a layer that owns the biases of relative positions stores them; the decoder's cross-attention has none. The
    modelling code ties the head to the token table whatever the config says.

    Args:
        config: the config.
        position_tables: layers of each stack with position biases; 0 stands for all of them.
    """
    hidden, inner = config.integer("d_model", "hidden_size"), config.integer("d_ff")
    count, width = config.integer("num_heads", "num_attention_heads"), config.integer("d_kv", "head_dim")
    layers = config.integer("num_layers", "num_hidden_layers")
    decoder_layers = config.integer_or(layers, "num_decoder_layers")
    tokens = config.integer("n_positions", default=512)
    biases = config.integer("relative_attention_num_buckets") * count
    gate = config.text("feed_forward_proj").rpartition("-")[0]
    feed = mlp(inner, gated=config.choice(gate, ("", "gated"), key="feed_forward_proj", what="the MLP") == "gated")
    attention = Full(heads=count, kv_heads=count, head_dim=width)
    cross = Cross(heads=count, kv_heads=count, head_dim=width, encoder_tokens=tokens)
    encoder = Block(name="encoder", mixers=(attention,), mlp=feed, vector_parameters=2 * hidden)
    decoder = Block(name="decoder", mixers=(attention, cross), mlp=feed, vector_parameters=3 * hidden)
    vocabulary = config.integer("vocab_size")
    notes: tuple[str, ...] = (_input_note(tokens),)
    if not config.flag("tie_word_embeddings", default=True):
        notes += (f"a separate output head ({vocabulary} x {hidden}) is not counted: the modelling code ties it",)
    return Shape(
        hidden_size=hidden,
        context_limit=tokens,
        blocks=_with_positions(decoder, decoder_layers, position_tables or decoder_layers, biases),
        embeddings=(Table(name="token", rows=vocabulary, width=hidden),),
        head=Head(rows=vocabulary, tied=True),
        encoder=Encoder(
            hidden_size=hidden,
            blocks=_with_positions(encoder, layers, position_tables or layers, biases),
            tokens=tokens,
            vector_parameters=hidden,
        ),
        vector_parameters=hidden,
        notes=notes,
    )


def umt5(config: Config) -> Shape:
    """UMT5: T5 with position biases in every layer."""
    return t5(config, position_tables=0)


def _with_positions(block: Block, layers: int, tables: int, biases: int) -> tuple[Block, ...]:
    """Return a stack whose first ``tables`` layers hold position biases."""
    owner = replace(block, name=f"{block.name}-positions", vector_parameters=block.vector_parameters + biases)
    return (owner,) * tables + (block,) * (layers - tables)


def _bart_block(config: Config, side: str, hidden: int, *, encoder_tokens: int, key_bias: bool = True) -> Block:
    """Return one layer of a stack by the keys of BART and its kin: all matrices and norms have biases."""
    count, inner = config.integer(f"{side}_attention_heads"), config.integer(f"{side}_ffn_dim")
    width = head_width(config, hidden, count)
    biases = (4 if key_bias else 3) * hidden
    attention = Full(heads=count, kv_heads=count, head_dim=width)
    block = Block(
        name=side,
        mixers=(attention,),
        mlp=mlp(inner, gated=False),
        vector_parameters=biases + mlp_biases(inner, hidden, gated=False) + 4 * hidden,
    )
    if side == "encoder":
        return block
    cross = Cross(heads=count, kv_heads=count, head_dim=width, encoder_tokens=encoder_tokens)
    return replace(block, mixers=(attention, cross), vector_parameters=block.vector_parameters + biases + 2 * hidden)


def _bart_like(config: Config, *, positions: int | None, embedding_norm: bool, last_norm: bool) -> Shape:
    """Return an encoder-decoder by BART's keys.

    Args:
        config: the config.
        positions: rows of each stack's position table beyond the position limit; none where positions are computed.
        embedding_norm: whether each stack normalises its embeddings.
        last_norm: whether each stack ends with a norm.
    """
    hidden, limit = config.integer("d_model"), config.integer("max_position_embeddings")
    vocabulary = config.integer("vocab_size")
    tied = config.flag("tie_word_embeddings")
    token = Table(name="token", rows=vocabulary, width=hidden)
    places = () if positions is None else (Table(name="position", rows=limit + positions, width=hidden),)
    norms = 2 * hidden * (embedding_norm + last_norm)
    # Without the tie the modelling code builds a table for each stack, and a third that neither reads.
    unread = () if tied else (replace(token, name="unread"),)
    return Shape(
        hidden_size=hidden,
        context_limit=limit,
        blocks=(_bart_block(config, "decoder", hidden, encoder_tokens=limit),) * config.integer("decoder_layers"),
        embeddings=(token, *places, *unread),
        head=Head(rows=vocabulary, tied=tied),
        encoder=Encoder(
            hidden_size=hidden,
            blocks=(_bart_block(config, "encoder", hidden, encoder_tokens=0),) * config.integer("encoder_layers"),
            tokens=limit,
            embeddings=places if tied else (token, *places),
            vector_parameters=norms,
        ),
        vector_parameters=norms,
        notes=(_input_note(limit),),
    )


def bart(config: Config) -> Shape:
    """BART and PLBART: position tables of two rows more than the limit, norms after each part and on the embeddings."""
    return _bart_like(config, positions=2, embedding_norm=True, last_norm=False)


def mbart(config: Config) -> Shape:
    """MBART: BART with the norms before each part, and so one more at the end."""
    return _bart_like(config, positions=2, embedding_norm=True, last_norm=True)


def pegasus(config: Config) -> Shape:
    """Pegasus and Blenderbot: a position table without extra rows, a norm at the end."""
    return _bart_like(config, positions=0, embedding_norm=False, last_norm=True)


def blenderbot_small(config: Config) -> Shape:
    """Blenderbot-small: BART without the extra rows of the position table."""
    return _bart_like(config, positions=0, embedding_norm=True, last_norm=False)


def m2m_100(config: Config) -> Shape:
    """M2M-100 and NLLB: computed positions, a norm at the end."""
    return _bart_like(config, positions=None, embedding_norm=False, last_norm=True)


def nllb_moe(config: Config) -> Shape:
    """NLLB-MoE: M2M-100 whose MLP is a mixture in every so many layers of either stack; two experts take a token."""
    shape = m2m_100(config)
    if shape.encoder is None:
        return shape
    layers = _with_mixtures(config, "encoder", shape.encoder.blocks, shape.hidden_size)
    return replace(
        shape,
        blocks=_with_mixtures(config, "decoder", shape.blocks, shape.hidden_size),
        encoder=replace(shape.encoder, blocks=layers),
    )


def _with_mixtures(config: Config, side: str, blocks: tuple[Block, ...], hidden: int) -> tuple[Block, ...]:
    step, width = config.integer(f"{side}_sparse_step", least=0), config.integer(f"{side}_ffn_dim")
    experts = config.integer("num_experts")
    mixture = Mixture(experts=experts, experts_per_token=2, width=width, gated=False, expert_bias=True)
    vectors = (experts if config.flag("router_bias") else 0) - mlp_biases(width, hidden, gated=False)
    return tuple(
        replace(block, name=f"{side}-moe", mlp=mixture, vector_parameters=block.vector_parameters + vectors)
        if step and (place + 1) % step == 0
        else block
        for place, block in enumerate(blocks)
    )


def marian(config: Config) -> Shape:
    """Marian: BART without norms outside the layers; the decoder may have a vocabulary of its own."""
    shape = _bart_like(config, positions=0, embedding_norm=False, last_norm=False)
    encoder = shape.encoder
    if config.flag("share_encoder_decoder_embeddings") or encoder is None:
        return shape
    token, place = shape.embeddings[:2]
    rows = config.integer_or(token.rows, "decoder_vocab_size")
    return replace(
        shape,
        embeddings=(replace(token, rows=rows), place),
        head=Head(rows=rows, tied=config.flag("tie_word_embeddings")),
        encoder=replace(encoder, embeddings=(token, place)),
    )


def whisper(config: Config) -> Shape:
    """Whisper: a spectrogram through two convolutions and an encoder; keys have no bias.

    The encoder's output always has ``max_source_positions`` frames (1500: 30 seconds of sound).
    """
    hidden, frames = config.integer("d_model"), config.integer("max_source_positions")
    vocabulary, limit = config.integer("vocab_size"), config.integer("max_target_positions")
    decoder = _bart_block(config, "decoder", hidden, encoder_tokens=frames, key_bias=False)
    encoder = _bart_block(config, "encoder", hidden, encoder_tokens=0, key_bias=False)
    return Shape(
        hidden_size=hidden,
        context_limit=limit,
        blocks=(decoder,) * config.integer("decoder_layers"),
        embeddings=(
            Table(name="token", rows=vocabulary, width=hidden),
            Table(name="position", rows=limit, width=hidden),
        ),
        head=Head(rows=vocabulary, tied=config.flag("tie_word_embeddings")),
        encoder=Encoder(
            hidden_size=hidden,
            blocks=(encoder,) * config.integer("encoder_layers"),
            tokens=frames,
            embeddings=(Table(name="position", rows=frames, width=hidden),),
            matrix_parameters=3 * hidden * (config.integer("num_mel_bins") + hidden),
            vector_parameters=4 * hidden,
        ),
        vector_parameters=2 * hidden,
        notes=(_input_note(frames, "frames"),),
    )


def moonshine(config: Config) -> Shape:
    """Moonshine: the waveform itself through three convolutions, rotary positions, a gated MLP in the decoder only.

    The length of the encoder's output follows that of the sound; it is counted at the position limit.
    """
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    limit, vocabulary = config.integer("max_position_embeddings"), config.integer("vocab_size")
    bias, sides = config.flag("attention_bias"), {}
    for side in ("encoder", "decoder"):
        query = config.integer(f"{side}_num_attention_heads")
        kv = config.integer_or(query, f"{side}_num_key_value_heads")
        width = head_width(config, hidden, query, "head_dim")
        attention = Full(heads=query, kv_heads=kv, head_dim=width)
        sides[side] = attention, attention_biases(query, kv, width, hidden, inputs=bias, output=False)
    if len({(attention.heads, attention.kv_heads) for attention, _ in sides.values()}) > 1:
        raise refuse(config, "decoder_num_key_value_heads", "a Moonshine whose two stacks differ in their heads")
    attention, biases = sides["decoder"]
    cross = Cross(heads=attention.heads, kv_heads=attention.kv_heads, head_dim=attention.head_dim, encoder_tokens=limit)
    decoder = Block(
        name="decoder",
        mixers=(attention, cross),
        mlp=mlp(inner),
        vector_parameters=2 * biases + mlp_biases(inner, hidden) + 3 * hidden,
    )
    encoder = Block(
        name="encoder",
        mixers=(sides["encoder"][0],),
        mlp=mlp(inner, gated=False),
        vector_parameters=sides["encoder"][1] + mlp_biases(inner, hidden, gated=False) + 2 * hidden,
    )
    return Shape(
        hidden_size=hidden,
        context_limit=limit,
        blocks=(decoder,) * config.integer("decoder_num_hidden_layers"),
        embeddings=(Table(name="token", rows=vocabulary, width=hidden),),
        head=Head(rows=vocabulary, tied=config.flag("tie_word_embeddings")),
        encoder=Encoder(
            hidden_size=hidden,
            blocks=(encoder,) * config.integer("encoder_num_hidden_layers"),
            tokens=limit,
            matrix_parameters=127 * hidden + 7 * 2 * hidden * hidden + 3 * 2 * hidden * hidden,
            vector_parameters=6 * hidden,
        ),
        vector_parameters=hidden,
        notes=(_input_note(limit, "frames"),),
    )


# What transformers' T5GemmaModuleConfig gives to keys that a stack's config leaves out.
_T5GEMMA_STACK: dict[str, Any] = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "attention_bias": False,
}


def t5gemma(config: Config) -> Shape:
    """T5Gemma: two stacks like Gemma 2, each with a token table of its own; the decoder also attends to the encoder."""
    encoder, decoder = (config.child(side, defaults=_T5GEMMA_STACK) for side in ("encoder", "decoder"))
    inputs, tokens = encoder.integer("hidden_size"), encoder.integer("max_position_embeddings")
    hidden, vocabulary = decoder.integer("hidden_size"), decoder.integer("vocab_size")
    return Shape(
        hidden_size=hidden,
        context_limit=decoder.integer("max_position_embeddings"),
        blocks=_t5gemma_stack(decoder, hidden, encoder_inputs=inputs, encoder_tokens=tokens),
        embeddings=(Table(name="token", rows=vocabulary, width=hidden),),
        head=Head(rows=vocabulary, tied=config.flag("tie_word_embeddings", default=True)),
        encoder=Encoder(
            hidden_size=inputs,
            blocks=_t5gemma_stack(encoder, inputs),
            tokens=tokens,
            embeddings=(Table(name="token", rows=encoder.integer("vocab_size"), width=inputs),),
            vector_parameters=inputs,
        ),
        vector_parameters=hidden,
        notes=(_input_note(tokens),),
    )


def _t5gemma_stack(
    config: Config, hidden: int, *, encoder_inputs: int | None = None, encoder_tokens: int = 0
) -> tuple[Block, ...]:
    layers, inner = config.integer("num_hidden_layers"), config.integer("intermediate_size")
    query, kv, width = heads(config, hidden=hidden)
    bias = config.flag("attention_bias")
    biases = attention_biases(query, kv, width, hidden, inputs=bias, output=bias)
    names = {"full_attention": "global", "sliding_attention": "local"}
    default = ["global" if place % 2 else "local" for place in range(layers)]
    kinds = layer_kinds(config, "layer_types", names=names, layers=layers, default=default)
    windows = {"global": None, "local": config.maybe_integer("sliding_window")}
    mixers = {kind: (windowed(query, kv, width, window), biases) for kind, window in windows.items()}
    layers_of = [(kind, "mlp") for kind in kinds]
    blocks = hybrid_layers(mixers, {"mlp": (mlp(inner), 0)}, layers_of, norms=4 * hidden)
    if encoder_inputs is None:
        return blocks
    cross = Cross(
        heads=query, kv_heads=kv, head_dim=width, encoder_tokens=encoder_tokens, encoder_inputs=encoder_inputs
    )
    vectors = 2 * hidden + biases
    return tuple(
        replace(block, mixers=(*block.mixers, cross), vector_parameters=block.vector_parameters + vectors)
        for block in blocks
    )


# One image of four tiles, each of 40 x 40 patches of 14 pixels and one class token (Llama 3.2 Vision's image_size 560).
_IMAGE_TOKENS = 4 * 1601


def mllama(config: Config) -> Shape:
    """Llama 3.2 Vision's text model: some layers attend to the image's tokens in place of the text's.

    These layers have two gates of one number each and normalise queries and keys; the token table has eight rows more
    than the head, for the image token and its reserve.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    query = config.integer("num_attention_heads")
    kv, width = config.integer_or(query, "num_key_value_heads"), head_width(config, hidden, query)
    listed = config.raw("cross_attention_layers", default=None)
    crossing = list(range(3, 39, 5)) if listed is None else config.sequence("cross_attention_layers")
    cross = Cross(heads=query, kv_heads=kv, head_dim=width, encoder_tokens=_IMAGE_TOKENS)
    attention = Full(heads=query, kv_heads=kv, head_dim=width)
    mixers: dict[str, tuple[Mixer, int]] = {"self": (attention, 0), "cross": (cross, 2 + 2 * width)}
    kinds = [("cross" if place in crossing else "self", "mlp") for place in range(layers)]
    feed = mlp(config.integer("intermediate_size"))
    blocks = hybrid_layers(mixers, {"mlp": (feed, 0)}, kinds, norms=2 * hidden)
    note = f"cross-attention is counted for one image of {_IMAGE_TOKENS} tokens; without one it holds nothing"
    shape = decoder_shape(config, blocks, hidden=hidden, notes=(note,))
    token = shape.embeddings[0]
    return replace(shape, embeddings=(replace(token, rows=token.rows + 8),), head=Head(rows=token.rows))


RULES: dict[str, Rule] = {
    "bart": bart,
    "blenderbot": pegasus,
    "blenderbot-small": blenderbot_small,
    "m2m_100": m2m_100,
    "marian": marian,
    "mbart": mbart,
    "mllama_text_model": mllama,
    "moonshine": moonshine,
    "mt5": t5,
    "nllb-moe": nllb_moe,
    "pegasus": pegasus,
    "plbart": bart,
    "t5": t5,
    "t5gemma": t5gemma,
    "umt5": umt5,
    "whisper": whisper,
}
