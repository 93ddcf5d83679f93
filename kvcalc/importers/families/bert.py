"""BERT and its kin as generators: layers with biases throughout, a table of positions, a transform before the head.

Most of their configs leave ``is_decoder`` false: such a model attends both ways and keeps no cache, so that it has
projections and no token mixer here, and each token it writes costs a pass over the whole text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Full, Head, Table
from kvcalc.importers.families.shape import Shape, attention_biases, head_width, mlp, mlp_biases, refuse

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Differences of one relative of BERT.

    Args:
        segments: whether it has a table of token types.
        first_norm: whether the embeddings are normalised.
        last_norm: whether the last layer's output is.
        transform: whether a map and a norm stand before the head.
        pooler: whether the map over the first token is built, which generation does not use.
        switched: whether ``use_bias`` switches the biases of queries, keys and values.
    """

    segments: bool = True
    first_norm: bool = True
    last_norm: bool = False
    transform: bool = True
    pooler: bool = False
    switched: bool = False


def _layers(
    config: Config, hidden: int, *, further: int = 0, biased: bool = True
) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    """Return the layers, with a cache where the model is a decoder, and a note where it is none.

    Args:
        config: the config.
        hidden: width of the hidden state.
        further: vector parameters of a layer besides its norms and biases.
        biased: whether queries, keys and values have biases.
    """
    if config.flag("add_cross_attention", default=False):
        raise refuse(config, "add_cross_attention", f"a {config.text('model_type')} with cross-attention")
    query, inner = config.integer("num_attention_heads"), config.integer("intermediate_size")
    width = head_width(config, hidden, query)
    vectors = attention_biases(query, query, width, hidden, inputs=biased, output=True)
    vectors += mlp_biases(inner, hidden, gated=False) + 4 * hidden + further
    decoder = config.flag("is_decoder", default=False)
    block = Block(
        name="decoder" if decoder else "encoder",
        mixers=(Full(heads=query, kv_heads=query, head_dim=width),) if decoder else (),
        mlp=mlp(inner, gated=False),
        matrix_parameters=0 if decoder else 4 * hidden * hidden,
        vector_parameters=vectors,
    )
    notes = () if decoder else ("is_decoder is false: the model attends both ways and keeps no cache",)
    return (block,) * config.integer("num_hidden_layers"), notes


def _tables(config: Config, width: int, *, segments: bool, positions: int | None = None) -> tuple[Table, ...]:
    tables = [Table(name="token", rows=config.integer("vocab_size"), width=width)]
    limit = config.integer("max_position_embeddings")
    tables.append(Table(name="position", rows=limit, width=positions or width))
    if segments:
        tables.append(Table(name="segment", rows=config.integer("type_vocab_size"), width=width))
    return tuple(tables)


def _line(line: _Line) -> Rule:
    """Return the rule of a relative of BERT."""

    def rule(config: Config) -> Shape:
        hidden = config.integer("hidden_size")
        blocks, notes = _layers(config, hidden, biased=not line.switched or config.flag("use_bias"))
        tables = _tables(config, hidden, segments=line.segments)
        if config.flag("use_task_id", default=False):
            tables += (Table(name="task", rows=config.integer("task_type_vocab_size"), width=hidden),)
        transformed = hidden * hidden if line.transform else 0
        vectors = 2 * hidden * (line.first_norm + line.last_norm)
        vectors += 3 * hidden if line.transform else 0
        vectors += hidden * hidden + hidden if line.pooler else 0
        return _shape(config, blocks, tables, matrices=transformed, vectors=vectors, untied_bias=True, notes=notes)

    return rule


def _shape(
    config: Config,
    blocks: tuple[Block, ...],
    tables: tuple[Table, ...],
    *,
    matrices: int,
    vectors: int,
    head_width: int | None = None,
    untied_bias: bool = False,
    notes: tuple[str, ...],
) -> Shape:
    """Return a model whose head has a bias and, unless the config says otherwise, the token table.

    Where it has not, its class makes a second bias for the head (``untied_bias``).
    """
    tied = config.flag("tie_word_embeddings", default=True)
    vectors += 0 if tied or not untied_bias else tables[0].rows
    return Shape(
        hidden_size=config.integer("hidden_size"),
        context_limit=config.integer("max_position_embeddings"),
        blocks=blocks,
        embeddings=tables,
        head=Head(rows=tables[0].rows, width=head_width, tied=tied, bias=True),
        matrix_parameters=matrices,
        vector_parameters=vectors,
        notes=notes,
    )


def electra(config: Config) -> Shape:
    """ELECTRA: embeddings and head may be narrower than the layers."""
    hidden, narrow = config.integer("hidden_size"), config.integer("embedding_size")
    blocks, notes = _layers(config, hidden)
    widened = hidden * narrow if narrow != hidden else 0
    vectors = 2 * narrow + 3 * narrow + (hidden if widened else 0)
    tables, matrices = _tables(config, narrow, segments=True), widened + hidden * narrow
    return _shape(config, blocks, tables, matrices=matrices, vectors=vectors, head_width=narrow, notes=notes)


def rembert(config: Config) -> Shape:
    """RemBERT: narrow embeddings, and a head that is wider than the layers."""
    hidden, narrow = config.integer("hidden_size"), config.integer("input_embedding_size")
    wide = config.integer("output_embedding_size")
    if config.flag("tie_word_embeddings", default=False) and narrow != wide:
        raise refuse(config, "tie_word_embeddings", "a RemBERT whose head is tied to a table of another width")
    blocks, notes = _layers(config, hidden)
    tables, matrices = _tables(config, narrow, segments=True), narrow * hidden + hidden * wide
    vectors = 2 * narrow + hidden + 3 * wide
    return _shape(config, blocks, tables, matrices=matrices, vectors=vectors, head_width=wide, notes=notes)


def big_bird(config: Config) -> Shape:
    """BigBird: attention to blocks of tokens, which its class does not allow a decoder."""
    sparse = config.text("attention_type") == "block_sparse"
    if sparse and config.flag("is_decoder", default=False):
        raise refuse(config, "attention_type", "a BigBird that is a decoder and attends to blocks")
    return _line(_Line(pooler=True, switched=True))(config)


def roformer(config: Config) -> Shape:
    """RoFormer: rotary positions, kept as a table of the width of a head."""
    hidden = config.integer("hidden_size")
    narrow = config.integer_or(hidden, "embedding_size")
    blocks, notes = _layers(config, hidden)
    width = head_width(config, hidden, config.integer("num_attention_heads"))
    tables = _tables(config, narrow, segments=True, positions=width)
    widened = narrow * hidden if narrow != hidden else 0
    vectors = 2 * narrow + 3 * narrow + (hidden if widened else 0)
    matrices = widened + hidden * narrow
    return _shape(
        config,
        blocks,
        tables,
        matrices=matrices,
        vectors=vectors,
        head_width=narrow,
        untied_bias=True,
        notes=notes,
    )


def roc_bert(config: Config) -> Shape:
    """RoCBert: tables of pronunciations and shapes of characters, joined with the words' by one map."""
    hidden = config.integer("hidden_size")
    blocks, notes = _layers(config, hidden)
    tables, wide = _tables(config, hidden, segments=True), hidden
    for name in ("pronunciation", "shape"):
        width = config.integer(f"{name}_embed_dim")
        tables += (Table(name=name, rows=config.integer(f"{name}_vocab_size"), width=width),)
        wide += width if config.flag(f"enable_{name}", default=True) else 0
    joined = config.flag("concat_input", default=True)
    if not joined:
        raise refuse(config, "concat_input", "a RoCBert that adds its tables")
    return _shape(
        config,
        blocks,
        tables,
        matrices=wide * hidden + hidden * hidden,
        vectors=2 * hidden + 4 * hidden,
        untied_bias=True,
        notes=notes,
    )


def xmod(config: Config) -> Shape:
    """X-MOD: an adapter for each language behind each MLP."""
    hidden, languages = config.integer("hidden_size"), len(config.sequence("languages"))
    for key in ("adapter_layer_norm", "pre_norm"):
        if config.flag(key, default=False):
            raise refuse(config, key, f"an X-MOD with {key}")
    narrow = hidden // config.integer("adapter_reduction_factor")
    adapters = languages * (2 * hidden * narrow + narrow + hidden)
    blocks, notes = _layers(config, hidden, further=adapters)
    tables = _tables(config, hidden, segments=True)
    vectors = 2 * hidden + 3 * hidden
    return _shape(config, blocks, tables, matrices=hidden * hidden, vectors=vectors, untied_bias=True, notes=notes)


def xlm(config: Config) -> Shape:
    """XLM: BERT's layers, four times as wide inside, and a table of languages where there are several."""
    hidden, query = config.integer("emb_dim", "hidden_size"), config.integer("n_heads", "num_attention_heads")
    if not config.flag("is_encoder", default=True) or config.flag("asm", default=False):
        raise refuse(config, "is_encoder", "an XLM that is a decoder or has an adaptive softmax")
    head_width(config, hidden, query)
    block = Block(
        name="encoder",
        mlp=mlp(4 * hidden, gated=False),
        matrix_parameters=4 * hidden * hidden,
        vector_parameters=4 * hidden + mlp_biases(4 * hidden, hidden, gated=False) + 4 * hidden,
    )
    rows, limit = config.integer("vocab_size", "n_words"), config.integer("max_position_embeddings")
    tables = [Table(name="token", rows=rows, width=hidden), Table(name="position", rows=limit, width=hidden)]
    languages = config.integer("n_langs")
    if languages > 1 and config.flag("use_lang_emb", default=True):
        tables.append(Table(name="language", rows=languages, width=hidden))
    return Shape(
        hidden_size=hidden,
        context_limit=limit,
        blocks=(block,) * config.integer("n_layers", "num_hidden_layers"),
        embeddings=tuple(tables),
        head=Head(rows=rows, tied=config.flag("tie_word_embeddings", default=True), bias=True),
        vector_parameters=2 * hidden,
        notes=("its class keeps no cache",),
    )


_ROBERTA = _line(_Line())

RULES: dict[str, Rule] = {
    "bert": _line(_Line()),
    "bert-generation": _line(_Line(segments=False, transform=False)),
    "big_bird": big_bird,
    "camembert": _ROBERTA,
    "data2vec-text": _ROBERTA,
    "electra": electra,
    "ernie": _line(_Line()),
    "megatron-bert": _line(_Line(first_norm=False, last_norm=True)),
    "rembert": rembert,
    "roberta": _ROBERTA,
    "roberta-prelayernorm": _line(_Line(last_norm=True)),
    "roc_bert": roc_bert,
    "roformer": roformer,
    "xlm": xlm,
    "xlm-roberta": _ROBERTA,
    "xlm-roberta-xl": _line(_Line(first_norm=False, last_norm=True)),
    "xmod": xmod,
}
