"""T5Gemma: Gemma's layers as an encoder, and as a decoder that attends to its output."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcalc.core.model import Block, Cross, Encoder, Head, Table
from kvcalc.importers.families.encoder import input_note, only_tied
from kvcalc.importers.families.shape import Shape, attention_biases, heads, hybrid_layers, layer_kinds, mlp, windowed
from kvcalc.importers.wrappers import inner_config

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]

# What transformers' T5GemmaModuleConfig gives to keys that a stack's config leaves out.
_STACK: dict[str, Any] = {
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
    encoder, decoder = (config.child(side, defaults=_STACK) for side in ("encoder", "decoder"))
    inputs, tokens = encoder.integer("hidden_size"), encoder.integer("max_position_embeddings")
    hidden, vocabulary = decoder.integer("hidden_size"), decoder.integer("vocab_size")
    return Shape(
        hidden_size=hidden,
        context_limit=decoder.integer("max_position_embeddings"),
        blocks=_stack(decoder, hidden, encoder_inputs=inputs, encoder_tokens=tokens),
        embeddings=(Table(name="token", rows=vocabulary, width=hidden),),
        head=Head(rows=vocabulary, tied=config.flag("tie_word_embeddings", default=True)),
        encoder=Encoder(
            hidden_size=inputs,
            blocks=_stack(encoder, inputs),
            tokens=tokens,
            embeddings=(Table(name="token", rows=encoder.integer("vocab_size"), width=inputs),),
            vector_parameters=inputs,
        ),
        vector_parameters=hidden,
        notes=(input_note(tokens),),
    )


def _stack(
    config: Config, hidden: int, *, encoder_inputs: int | None = None, encoder_tokens: int = 0
) -> tuple[Block, ...]:
    layers, inner = config.integer("num_hidden_layers"), config.integer("intermediate_size")
    query, kv, width = heads(config, hidden=hidden)
    bias = config.flag("attention_bias")
    biases = attention_biases(query, kv, width, hidden, inputs=bias, output=bias)
    names = {"full_attention": "global", "sliding_attention": "local"}
    default = ["global" if layer % 2 else "local" for layer in range(layers)]
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


def t5gemma2(config: Config) -> Shape:
    """T5Gemma 2: Gemma 3's layers, one token table for both stacks, and cross-attention with the weights of the other.

    The encoder also reads images, and has a vector of its own for the end of one.
    """
    only_tied(config)
    wrapper = inner_config(config, "encoder", "t5gemma2_encoder")
    encoder = inner_config(wrapper, "text_config", "t5gemma2_text")
    decoder = inner_config(config, "decoder", "t5gemma2_decoder")
    hidden, tokens = decoder.integer("hidden_size"), encoder.integer("max_position_embeddings")
    rows = encoder.integer("vocab_size")
    if encoder.integer("hidden_size") != hidden:
        raise decoder.bad("hidden_size", hidden, "that of the encoder, whose token table it shares")
    return Shape(
        hidden_size=hidden,
        context_limit=decoder.integer("max_position_embeddings"),
        blocks=_normalised(decoder, hidden, cross=tokens),
        embeddings=(Table(name="token", rows=rows, width=hidden),),
        head=Head(rows=rows, tied=True),
        encoder=Encoder(
            hidden_size=hidden,
            blocks=_normalised(encoder, hidden, cross=0),
            tokens=tokens,
            vector_parameters=2 * hidden,
        ),
        vector_parameters=hidden,
        notes=(input_note(tokens),),
    )


def _normalised(config: Config, hidden: int, *, cross: int) -> tuple[Block, ...]:
    """Return a stack whose queries and keys are normalised, five windows to one global layer.

    Args:
        config: the stack's.
        hidden: width of the hidden state.
        cross: tokens of the encoder's output that each layer attends to besides, with the weights it has; 0 for none.
    """
    query, kv, width = heads(config, hidden=hidden)
    bias, layers = config.flag("attention_bias"), config.integer("num_hidden_layers")
    vectors = attention_biases(query, kv, width, hidden, inputs=bias, output=bias) + 2 * width
    names = {"full_attention": "global", "sliding_attention": "local"}
    default = ["local" if (index + 1) % 6 else "global" for index in range(layers)]
    kinds = layer_kinds(config, "layer_types", names=names, layers=layers, default=default)
    windows = {"global": None, "local": config.maybe_integer("sliding_window")}
    mixers = {kind: (windowed(query, kv, width, window), vectors) for kind, window in windows.items()}
    feed = mlp(config.integer("intermediate_size"))
    blocks = hybrid_layers(mixers, {"mlp": (feed, 0)}, [(kind, "mlp") for kind in kinds], norms=4 * hidden)
    if not cross:
        return blocks
    output = Cross(heads=query, kv_heads=kv, head_dim=width, encoder_tokens=cross, shared_weights=True)
    return tuple(replace(block, mixers=(*block.mixers, output)) for block in blocks)


RULES: dict[str, Rule] = {
    "t5gemma": t5gemma,
    "t5gemma2": t5gemma2,
}
