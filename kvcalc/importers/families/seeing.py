"""Text decoders of the first models that see: BLIP, GIT, IDEFICS, Kosmos-2 and Pix2Struct."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Cross, Full, Head, Table
from kvcalc.importers.families.encoder import input_note
from kvcalc.importers.families.shape import (
    Shape,
    attention_biases,
    decoder_shape,
    head_width,
    mlp,
    mlp_biases,
    refuse,
)

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]

# BLIP's image of 384 x 384 in patches of 16, and a class token; the patches that Pix2Struct cuts an image into.
_BLIP_TOKENS, _PIX2STRUCT_TOKENS = 577, 2048


def _normed_layer(config: Config, hidden: int, *, vectors: int = 0) -> Block:
    """Return a layer of BERT's kind that attends to what stands before it."""
    query, inner = config.integer("num_attention_heads"), config.integer("intermediate_size")
    width = head_width(config, hidden, query)
    vectors += attention_biases(query, query, width, hidden, inputs=True, output=True)
    vectors += mlp_biases(inner, hidden, gated=False) + 4 * hidden
    mixer = Full(heads=query, kv_heads=query, head_dim=width)
    return Block(name="decoder", mixers=(mixer,), mlp=mlp(inner, gated=False), vector_parameters=vectors)


def _shape(
    config: Config, blocks: tuple[Block, ...], hidden: int, *, vectors: int, notes: tuple[str, ...] = ()
) -> Shape:
    """Return a decoder with tables of words and positions, and a head with a bias."""
    shape = decoder_shape(config, blocks, hidden=hidden, vectors=vectors, head_bias=True, notes=notes)
    limit = config.integer("max_position_embeddings")
    return replace(shape, embeddings=(*shape.embeddings, Table(name="position", rows=limit, width=hidden)))


def git(config: Config) -> Shape:
    """GIT: BERT's layers, which also see the patches of an image before the text."""
    hidden = config.integer("hidden_size")
    blocks = (_normed_layer(config, hidden),) * config.integer("num_hidden_layers")
    return _shape(config, blocks, hidden, vectors=2 * hidden)


def blip(config: Config) -> Shape:
    """BLIP's text model: BERT's layers with attention to the image in each, a transform before the head."""
    hidden = config.integer("hidden_size")
    if not config.flag("is_decoder", default=True):
        raise refuse(config, "is_decoder", "a BLIP that is no decoder")
    layer = _normed_layer(config, hidden, vectors=6 * hidden)
    query = config.integer("num_attention_heads")
    cross = Cross(
        heads=query,
        kv_heads=query,
        head_dim=hidden // query,
        encoder_tokens=_BLIP_TOKENS,
        encoder_inputs=config.integer("encoder_hidden_size"),
    )
    layer = replace(layer, mixers=(*layer.mixers, cross))
    blocks = (layer,) * config.integer("num_hidden_layers")
    shape = _shape(config, blocks, hidden, vectors=5 * hidden, notes=(input_note(_BLIP_TOKENS, "patches"),))
    return replace(shape, matrix_parameters=hidden * hidden)


def _kosmos(config: Config, *, attention_norm: bool, segments: bool) -> Shape:
    """Return a decoder with computed positions and a norm inside each MLP."""
    if config.flag("add_cross_attention", default=False):
        raise refuse(config, "add_cross_attention", "a Kosmos with cross-attention")
    hidden, inner = config.integer("embed_dim", "hidden_size"), config.integer("ffn_dim")
    query = config.integer("attention_heads", "num_attention_heads")
    vectors = 4 * hidden + mlp_biases(inner, hidden, gated=False) + 4 * hidden + 2 * inner
    block = Block(
        name="decoder",
        mixers=(Full(heads=query, kv_heads=query, head_dim=head_width(config, hidden, query)),),
        mlp=mlp(inner, gated=False),
        vector_parameters=vectors + (2 * hidden if attention_norm else 0),
    )
    blocks = (block,) * config.integer("layers", "num_hidden_layers")
    shape = decoder_shape(config, blocks, hidden=hidden, vectors=2 * hidden)
    if segments:
        shape = replace(shape, embeddings=(*shape.embeddings, Table(name="segment", rows=2, width=hidden)))
    return shape


def kosmos2(config: Config) -> Shape:
    """Kosmos-2's text model: a norm on the attention's output too (MAGNETO)."""
    return _kosmos(config, attention_norm=True, segments=False)


def kosmos2_5(config: Config) -> Shape:
    """Kosmos-2.5's text model: a table that tells text from image."""
    return _kosmos(config, attention_norm=False, segments=True)


def pix2struct(config: Config) -> Shape:
    """Pix2Struct's text model: T5's decoder with a gated MLP, and a head of its own."""
    hidden, inner = config.integer("hidden_size"), config.integer("d_ff")
    query, width = config.integer("num_heads", "num_attention_heads"), config.integer("d_kv")
    cross = Cross(heads=query, kv_heads=query, head_dim=width, encoder_tokens=_PIX2STRUCT_TOKENS)
    block = Block(
        name="decoder",
        mixers=(Full(heads=query, kv_heads=query, head_dim=width), cross),
        mlp=mlp(inner),
        vector_parameters=3 * hidden,
    )
    biases = config.integer("relative_attention_num_buckets") * query
    first = replace(block, name="decoder-positions", vector_parameters=3 * hidden + biases)
    blocks = (first, *(block,) * (config.integer("num_layers", "num_hidden_layers") - 1))
    return decoder_shape(config, blocks, hidden=hidden, notes=(input_note(_PIX2STRUCT_TOKENS, "patches"),))


def idefics(config: Config) -> Shape:
    """IDEFICS: Llama with a gated layer before every so many, which attends to images and keeps no cache of them."""
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    for key in ("use_resampler", "qk_layer_norms"):
        if config.flag(key, default=False):
            raise refuse(config, key, f"an IDEFICS with {key}")
    inner, layers = config.integer("intermediate_size"), config.integer("num_hidden_layers")
    seen = config.child("vision_config").integer("embed_dim", "hidden_size", default=768)
    kind = config.choice(config.text("alpha_type"), ("float", "vector"), key="alpha_type", what="the gate")
    block = Block(
        name="decoder",
        mixers=(Full(heads=query, kv_heads=query, head_dim=head_width(config, hidden, query)),),
        mlp=mlp(inner),
        vector_parameters=2 * hidden,
    )
    crossed = Block(
        name="cross",
        mlp=mlp(inner),
        matrix_parameters=2 * hidden * hidden + 2 * hidden * seen,
        vector_parameters=2 * hidden + 2 * (hidden if kind == "vector" else 1),
    )
    every = config.integer("cross_layer_interval")
    blocks = [part for index in range(layers) for part in ((crossed, block) if index % every == 0 else (block,))]
    shape = decoder_shape(config, tuple(blocks), hidden=hidden)
    rows = shape.embeddings[0].rows + config.integer("additional_vocab_size", least=0)
    tied = config.flag("tie_word_embeddings", default=False)
    return replace(shape, embeddings=(Table(name="token", rows=rows, width=hidden),), head=Head(rows=rows, tied=tied))


RULES: dict[str, Rule] = {
    "blip_text_model": blip,
    "git": git,
    "idefics": idefics,
    "kosmos_2_5_text_model": kosmos2_5,
    "kosmos_2_text_model": kosmos2,
    "pix2struct_text_model": pix2struct,
}
