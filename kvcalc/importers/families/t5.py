"""T5 and its kin: relative positions as biases that one layer of a stack holds, no biases elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Cross, Encoder, Full, Head, Mixture, Table
from kvcalc.importers.families.encoder import input_note, only_tied
from kvcalc.importers.families.shape import Shape, mlp

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]


def t5(config: Config, *, position_tables: int = 1, ungated: bool = False) -> Shape:
    """T5, mT5 and (with a table of position biases in every layer) UMT5.

    Only a layer that owns the biases of relative positions stores them; the decoder's cross-attention has none. The
    modelling code ties the head to the token table whatever the config says.

    Args:
        config: the config.
        position_tables: layers of each stack with position biases; 0 stands for all of them.
        ungated: whether the MLP always has two matrices.
    """
    hidden, inner = config.integer("d_model", "hidden_size"), config.integer("d_ff")
    count, width = config.integer("num_heads", "num_attention_heads"), config.integer("d_kv", "head_dim")
    layers = config.integer("num_layers", "num_hidden_layers")
    decoder_layers = config.integer_or(layers, "num_decoder_layers")
    tokens = config.integer("n_positions", default=512)
    biases = config.integer("relative_attention_num_buckets") * count
    gate = "" if ungated else config.text("feed_forward_proj").rpartition("-")[0]
    feed = mlp(inner, gated=config.choice(gate, ("", "gated"), key="feed_forward_proj", what="the MLP") == "gated")
    attention = Full(heads=count, kv_heads=count, head_dim=width)
    cross = Cross(heads=count, kv_heads=count, head_dim=width, encoder_tokens=tokens)
    encoder = Block(name="encoder", mixers=(attention,), mlp=feed, vector_parameters=2 * hidden)
    decoder = Block(name="decoder", mixers=(attention, cross), mlp=feed, vector_parameters=3 * hidden)
    vocabulary = config.integer("vocab_size")
    notes: tuple[str, ...] = (input_note(tokens),)
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


def longt5(config: Config) -> Shape:
    """LongT5: an encoder of local attention, beside which each block of tokens may have a summary.

    With ``transient-global`` attention each of its layers normalises the summaries, and the first has biases for them.
    """
    shape = t5(config)
    known = ("local", "transient-global")
    kind = config.choice(
        config.text("encoder_attention_type"), known, key="encoder_attention_type", what="the attention"
    )
    if kind == "local" or shape.encoder is None:
        return shape
    biases = config.integer("relative_attention_num_buckets") * config.integer("num_heads", "num_attention_heads")
    blocks = tuple(
        replace(block, vector_parameters=block.vector_parameters + shape.hidden_size + (0 if index else biases))
        for index, block in enumerate(shape.encoder.blocks)
    )
    return replace(shape, encoder=replace(shape.encoder, blocks=blocks))


def pop2piano(config: Config) -> Shape:
    """Pop2Piano: T5 over a spectrogram, with a table of composers and a head of its own."""
    shape = t5(config)
    composers = config.integer("composer_vocab_size", default=21)
    table = Table(name="composer", rows=composers, width=shape.hidden_size)
    head = Head(rows=shape.embeddings[0].rows)
    return replace(shape, embeddings=(*shape.embeddings, table), head=head, notes=shape.notes[:1])


def switch(config: Config) -> Shape:
    """Switch Transformers: T5 whose MLP is a mixture in every so many layers of either stack, of one expert a token."""
    only_tied(config)
    shape = t5(config, ungated=True)
    if shape.encoder is None:
        return shape
    blocks = _with_mixtures(config, "encoder", shape.encoder.blocks)
    return replace(
        shape,
        blocks=_with_mixtures(config, "decoder", shape.blocks),
        encoder=replace(shape.encoder, blocks=blocks),
    )


def _with_mixtures(config: Config, side: str, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return a stack with mixtures in the second of each few layers, and in all where the few are one."""
    sparse = config.integer(f"num_sparse_{side}_layers", least=0)
    step = config.integer_or(len(blocks) // sparse if sparse else len(blocks), f"{side}_sparse_step", least=0)
    experts = config.integer("num_experts")
    mixture = Mixture(experts=experts, experts_per_token=1, width=config.integer("d_ff"), gated=False)
    bias = experts if config.flag("router_bias", default=False) else 0
    return tuple(
        replace(block, name=f"{block.name}-moe", mlp=mixture, vector_parameters=block.vector_parameters + bias)
        if step and (index % step == 1 or step == 1)
        else block
        for index, block in enumerate(blocks)
    )


def udop(config: Config) -> Shape:
    """UDOP: T5 that also reads the patches of a page and where its words stand, in both directions.

    Either stack has the map from patches and a set of biases for distances along each direction.
    """
    shape = t5(config)
    hidden, side = shape.hidden_size, config.integer("patch_size")
    patches = hidden * config.integer("num_channels") * side * side
    biases = 2 * config.integer("relative_attention_num_buckets") * config.integer("num_heads", "num_attention_heads")
    places = config.integer("max_2d_position_embeddings", default=1024)
    if config.sequence("relative_bias_args", default=None) not in ([], _UDOP_BIASES):
        raise config.bad("relative_bias_args", config.raw("relative_bias_args"), "words and both directions")
    encoder = shape.encoder
    return replace(
        shape,
        encoder=None
        if encoder is None
        else replace(
            encoder,
            embeddings=tuple(Table(name=f"position-{axis}", rows=places, width=hidden) for axis in "xy"),
            matrix_parameters=patches,
            vector_parameters=encoder.vector_parameters + hidden + biases,
        ),
        matrix_parameters=patches,
        vector_parameters=shape.vector_parameters + hidden + biases,
    )


_UDOP_BIASES = [{"type": kind} for kind in ("1d", "horizontal", "vertical")]

RULES: dict[str, Rule] = {
    "longt5": longt5,
    "mt5": t5,
    "pop2piano": pop2piano,
    "switch_transformers": switch,
    "t5": t5,
    "udop": udop,
    "umt5": umt5,
}
