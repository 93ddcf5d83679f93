"""BART and its kin: encoders and decoders with biases, most with tables of positions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Cross, Encoder, Full, Head, Mixture, Table
from kvcalc.importers.families.encoder import bart_block, input_note, only_tied
from kvcalc.importers.families.shape import Shape, attention_biases, head_width, mlp, mlp_biases, refuse

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]


def _bart_like(
    config: Config, *, positions: int | None, embedding_norm: bool, last_norm: bool, biased: int = 4
) -> Shape:
    """Return an encoder-decoder by BART's keys.

    Args:
        config: the config.
        positions: rows of each stack's position table beyond the position limit; none where positions are computed.
        embedding_norm: whether each stack normalises its embeddings.
        last_norm: whether each stack ends with a norm.
        biased: of an attention's four projections, how many have biases.
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
        blocks=(bart_block(config, "decoder", hidden, encoder_tokens=limit, biased=biased),)
        * config.integer("decoder_layers"),
        embeddings=(token, *places, *unread),
        head=Head(rows=vocabulary, tied=tied),
        encoder=Encoder(
            hidden_size=hidden,
            blocks=(bart_block(config, "encoder", hidden, encoder_tokens=0, biased=biased),)
            * config.integer("encoder_layers"),
            tokens=limit,
            embeddings=places if tied else (token, *places),
            vector_parameters=norms,
        ),
        vector_parameters=norms,
        notes=(input_note(limit),),
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
        if step and (layer + 1) % step == 0
        else block
        for layer, block in enumerate(blocks)
    )


def marian(config: Config) -> Shape:
    """Marian: BART without norms outside the layers; the decoder may have a vocabulary of its own."""
    shape = _bart_like(config, positions=0, embedding_norm=False, last_norm=False)
    encoder = shape.encoder
    if config.flag("share_encoder_decoder_embeddings") or encoder is None:
        return shape
    token, positions = shape.embeddings[:2]
    rows = config.integer_or(token.rows, "decoder_vocab_size")
    return replace(
        shape,
        embeddings=(replace(token, rows=rows), positions),
        head=Head(rows=rows, tied=config.flag("tie_word_embeddings")),
        encoder=replace(encoder, embeddings=(token, positions)),
    )


def mvp(config: Config) -> Shape:
    """MVP: BART; prompts that it may learn are refused."""
    if config.flag("use_prompt", default=False):
        raise refuse(config, "use_prompt", "an MVP with learned prompts")
    return bart(config)


def bigbird_pegasus(config: Config) -> Shape:
    """BigBird-Pegasus: projections without biases, one norm at the end of each stack."""
    known = ("block_sparse", "original_full")
    config.choice(config.text("attention_type"), known, key="attention_type", what="the encoder's attention")
    return _bart_like(config, positions=0, embedding_norm=False, last_norm=True, biased=4 * config.flag("use_bias"))


def pegasus_x(config: Config) -> Shape:
    """PEGASUS-X: computed positions, tokens that see the whole input, and a norm for them in each layer."""
    shape = _bart_like(config, positions=None, embedding_norm=False, last_norm=True, biased=0)
    if shape.encoder is None:
        return shape
    hidden, marks = shape.hidden_size, config.integer("num_global_tokens")
    blocks = tuple(
        replace(block, vector_parameters=block.vector_parameters + 2 * hidden) for block in shape.encoder.blocks
    )
    tables = (*shape.encoder.embeddings, Table(name="global", rows=marks, width=hidden))
    return replace(shape, encoder=replace(shape.encoder, blocks=blocks, embeddings=tables))


def led(config: Config) -> Shape:
    """LED: an encoder of local attention, with further projections for the tokens that see everything."""
    hidden, vocabulary = config.integer("d_model"), config.integer("vocab_size")
    only_tied(config)
    config.pass_over("attention_window", "the encoder keeps no cache")
    limits = {side: config.integer(f"max_{side}_position_embeddings") for side in ("encoder", "decoder")}
    tables = {side: Table(name="position", rows=limit, width=hidden) for side, limit in limits.items()}
    encoder = bart_block(config, "encoder", hidden, encoder_tokens=0)
    encoder = replace(
        encoder,
        matrix_parameters=3 * hidden * hidden,
        vector_parameters=encoder.vector_parameters + 3 * hidden,
    )
    tokens = limits["encoder"]
    return Shape(
        hidden_size=hidden,
        context_limit=limits["decoder"],
        blocks=(bart_block(config, "decoder", hidden, encoder_tokens=tokens),) * config.integer("decoder_layers"),
        embeddings=(Table(name="token", rows=vocabulary, width=hidden), tables["decoder"]),
        head=Head(rows=vocabulary, tied=True),
        encoder=Encoder(
            hidden_size=hidden,
            blocks=(encoder,) * config.integer("encoder_layers"),
            tokens=tokens,
            embeddings=(tables["encoder"],),
            vector_parameters=2 * hidden,
        ),
        vector_parameters=2 * hidden,
        notes=(input_note(tokens),),
    )


def fsmt(config: Config) -> Shape:
    """FSMT: a vocabulary for each language; computed positions, which the class keeps as tables with two rows more."""
    if config.flag("tie_word_embeddings", default=False):
        raise refuse(config, "tie_word_embeddings", "an FSMT whose languages share a vocabulary")
    hidden, limit = config.integer("d_model"), config.integer("max_position_embeddings")
    places = Table(name="position", rows=limit + 2, width=hidden)
    rows = [config.integer(f"{side}_vocab_size") for side in ("src", "tgt")]
    source, target = (Table(name="token", rows=count, width=hidden) for count in rows)
    return Shape(
        hidden_size=hidden,
        context_limit=limit,
        blocks=(bart_block(config, "decoder", hidden, encoder_tokens=limit),) * config.integer("decoder_layers"),
        embeddings=(target, places),
        head=Head(rows=target.rows),
        encoder=Encoder(
            hidden_size=hidden,
            blocks=(bart_block(config, "encoder", hidden, encoder_tokens=0),) * config.integer("encoder_layers"),
            tokens=limit,
            embeddings=(source, places),
        ),
        notes=(input_note(limit),),
    )


def seamless_m4t(config: Config) -> Shape:
    """SeamlessM4T from text to text: M2M-100's stacks; its speech encoder, units and vocoder are other models."""
    hidden, limit = config.integer("hidden_size"), config.integer("max_position_embeddings")
    rows = config.integer("vocab_size")
    only_tied(config)
    decoder = bart_block(config, "decoder", hidden, encoder_tokens=limit)
    encoder = bart_block(config, "encoder", hidden, encoder_tokens=0)
    return Shape(
        hidden_size=hidden,
        context_limit=limit,
        blocks=(decoder,) * config.integer("decoder_layers"),
        embeddings=(Table(name="token", rows=rows, width=hidden),),
        head=Head(rows=rows, tied=True),
        encoder=Encoder(
            hidden_size=hidden,
            blocks=(encoder,) * config.integer("encoder_layers"),
            tokens=limit,
            vector_parameters=2 * hidden,
        ),
        vector_parameters=2 * hidden,
        notes=(input_note(limit), "from text to text: the speech encoder and decoder are not counted"),
    )


def prophetnet(config: Config) -> Shape:
    """ProphetNet: each layer of the decoder predicts several tokens ahead, by biases that it computes from its input.

    Only the stream of the text itself is cached.
    """
    if not config.flag("add_cross_attention", default=True):
        raise refuse(config, "add_cross_attention", "a ProphetNet that does not attend to its encoder")
    only_tied(config)
    hidden, limit = config.integer("hidden_size"), config.integer("max_position_embeddings")
    vocabulary = config.integer("vocab_size")
    blocks = {}
    for side in ("encoder", "decoder"):
        query, inner = config.integer(f"num_{side}_attention_heads"), config.integer(f"{side}_ffn_dim")
        width = head_width(config, hidden, query)
        vectors = attention_biases(query, query, width, hidden, inputs=True, output=True)
        vectors += mlp_biases(inner, hidden, gated=False) + 4 * hidden
        attention = Full(heads=query, kv_heads=query, head_dim=width)
        block = Block(name=side, mixers=(attention,), mlp=mlp(inner, gated=False), vector_parameters=vectors)
        if side == "decoder":
            buckets = config.integer("num_buckets") * query
            cross = Cross(heads=query, kv_heads=query, head_dim=width, encoder_tokens=limit)
            block = replace(
                block,
                mixers=(attention, cross),
                matrix_parameters=buckets * hidden,
                vector_parameters=vectors + buckets + 6 * hidden,
            )
        blocks[side] = (block,) * config.integer(f"num_{side}_layers")
    places = Table(name="position", rows=limit, width=hidden)
    return Shape(
        hidden_size=hidden,
        context_limit=limit,
        blocks=blocks["decoder"],
        embeddings=(
            Table(name="token", rows=vocabulary, width=hidden),
            places,
            Table(name="ngram", rows=config.integer("ngram"), width=hidden),
        ),
        head=Head(rows=vocabulary, tied=True),
        encoder=Encoder(
            hidden_size=hidden,
            blocks=blocks["encoder"],
            tokens=limit,
            embeddings=(places,),
            vector_parameters=2 * hidden,
        ),
        vector_parameters=2 * hidden,
        notes=(input_note(limit),),
    )


RULES: dict[str, Rule] = {
    "bart": bart,
    "bigbird_pegasus": bigbird_pegasus,
    "blenderbot": pegasus,
    "blenderbot-small": blenderbot_small,
    "fsmt": fsmt,
    "led": led,
    "m2m_100": m2m_100,
    "marian": marian,
    "mbart": mbart,
    "mvp": mvp,
    "nllb-moe": nllb_moe,
    "pegasus": pegasus,
    "pegasus_x": pegasus_x,
    "plbart": bart,
    "prophetnet": prophetnet,
    "seamless_m4t": seamless_m4t,
    "seamless_m4t_v2": seamless_m4t,
}
