"""Decoders that attend to a tower's output in place of text: Whisper, Moonshine, Llama 3.2 Vision."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Cross, Encoder, Full, Head, Table
from kvcalc.importers.families.shape import (
    Shape,
    attention_biases,
    decoder_shape,
    head_width,
    hybrid_layers,
    mlp,
    mlp_biases,
    refuse,
)

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES", "bart_block", "input_note", "only_tied"]


def input_note(tokens: int, what: str = "tokens") -> str:
    """Return the note on the length of the input that cross-attention is counted for."""
    return f"cross-attention is counted for an input of {tokens} {what}"


def only_tied(config: Config) -> None:
    """Refuse a model whose stacks and head do not share one token table."""
    if not config.flag("tie_word_embeddings", default=True):
        what = f"a {config.text('model_type')} whose stacks and head have token tables of their own"
        raise refuse(config, "tie_word_embeddings", what)


def bart_block(config: Config, side: str, hidden: int, *, encoder_tokens: int, biased: int = 4) -> Block:
    """Return one layer of a stack by the keys of BART and its kin; norms and MLP have biases.

    Args:
        config: the config.
        side: the stack, as its keys name it.
        hidden: width of the hidden state.
        encoder_tokens: tokens of the encoder's output that a decoder attends to.
        biased: of an attention's four projections, how many have biases.
    """
    count, inner = config.integer(f"{side}_attention_heads"), config.integer(f"{side}_ffn_dim")
    width = head_width(config, hidden, count)
    biases = biased * hidden
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


def whisper(config: Config) -> Shape:
    """Whisper: a spectrogram through two convolutions and an encoder; keys have no bias.

    The encoder's output always has ``max_source_positions`` frames (1500: 30 seconds of sound).
    """
    hidden, frames = config.integer("d_model"), config.integer("max_source_positions")
    vocabulary, limit = config.integer("vocab_size"), config.integer("max_target_positions")
    decoder = bart_block(config, "decoder", hidden, encoder_tokens=frames, biased=3)
    encoder = bart_block(config, "encoder", hidden, encoder_tokens=0, biased=3)
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
        notes=(input_note(frames, "frames"),),
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
        notes=(input_note(limit, "frames"),),
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
    kinds = [("cross" if layer in crossing else "self", "mlp") for layer in range(layers)]
    feed = mlp(config.integer("intermediate_size"))
    blocks = hybrid_layers(mixers, {"mlp": (feed, 0)}, kinds, norms=2 * hidden)
    note = f"cross-attention is counted for one image of {_IMAGE_TOKENS} tokens; without one it holds nothing"
    shape = decoder_shape(config, blocks, hidden=hidden, notes=(note,))
    token = shape.embeddings[0]
    return replace(shape, embeddings=(replace(token, rows=token.rows + 8),), head=Head(rows=token.rows))


RULES: dict[str, Rule] = {
    "mllama_text_model": mllama,
    "moonshine": moonshine,
    "whisper": whisper,
}
