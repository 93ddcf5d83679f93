"""The result of a rule, and helpers that most rules share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import (
    Block,
    Chunked,
    Compressed,
    Dense,
    Full,
    Gated,
    Head,
    Latent,
    Mixture,
    Sliding,
    State,
    Table,
)
from kvcalc.importers.config_reader import KeyUse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.model import Encoder, Mixer, Mlp
    from kvcalc.importers.config_reader import Config

__all__ = [
    "Rule",
    "Shape",
    "attention_biases",
    "decoder_shape",
    "dense_first",
    "head_width",
    "heads",
    "hybrid_layers",
    "layer_kinds",
    "layer_list",
    "mlp",
    "mlp_biases",
    "mtp_notes",
    "note_order",
    "refuse",
    "stack",
    "tables",
    "windowed",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model as its config describes it; the fields are those of `ModelProfile`.

    ``formats`` are those of parts that the class stores in its own way, whatever the checkpoint's dtype.
    """

    hidden_size: int
    context_limit: int | None
    blocks: tuple[Block, ...]
    embeddings: tuple[Table, ...]
    head: Head | None
    encoder: Encoder | None = None
    matrix_parameters: int = 0
    vector_parameters: int = 0
    formats: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


Rule = Callable[["Config"], Shape]


def heads(config: Config, *, hidden: int) -> tuple[int, int, int]:
    """Return query heads, KV heads and head width, by the keys that most configs use."""
    query = config.integer("num_attention_heads")
    return query, config.integer_or(query, "num_key_value_heads"), head_width(config, hidden, query, "head_dim")


def head_width(config: Config, hidden: int, query: int, *keys: str) -> int:
    """Return the width of a head: as one of these keys gives it, else an equal part of the hidden state."""
    if keys and (width := config.maybe_integer(*keys)) is not None:
        return width
    if hidden % query:
        raise config.bad("hidden_size", hidden, f"a multiple of {query} heads, whose width the config does not give")
    return config.integer_or(hidden // query, *keys) if keys else hidden // query


def tables(config: Config, *, hidden: int, tied: bool) -> tuple[tuple[Table, ...], Head]:
    """Return the token table and the output head."""
    vocabulary = config.integer("vocab_size")
    return (Table(name="token", rows=vocabulary, width=hidden),), Head(rows=vocabulary, tied=tied)


def mlp(width: int, *, gated: bool = True) -> Mlp:
    """Return an MLP of three matrices, or of two."""
    return Gated(width=width) if gated else Dense(width=width)


def windowed(query: int, kv: int, width: int, window: int | None) -> Mixer:
    """Return attention over a window, or over everything where there is none."""
    if window is None:
        return Full(heads=query, kv_heads=kv, head_dim=width)
    return Sliding(heads=query, kv_heads=kv, head_dim=width, window=window)


# Kinds of layers that transformers renamed; checkpoints keep the older names.
_OLDER_NAMES = {"attention": "full_attention", "deepseek_sparse_attention": "indexed_attention"}


def layer_list(config: Config, key: str, *, layers: int, known: Sequence[str], default: Sequence[str]) -> list[str]:
    """Return a kind for each layer, every one a known one; the family's own list where the config has none."""
    kinds = config.sequence(key, default=None)
    if not kinds:
        note_order(config, key, default)
        return list(default)
    if len(kinds) != layers:
        raise config.bad(key, f"{len(kinds)} entries", f"{layers} entries, one for each layer")
    named = [str(kind) if kind in known else _OLDER_NAMES.get(str(kind), str(kind)) for kind in kinds]
    return [config.choice(kind, known, key=key, what="the layer kind") for kind in named]


# Keys from which classes make their lists of layers: where a config has one of them, the order is its own.
_ORDERS = (
    "attention_chunk_size", "attn_layer_indices", "attn_layer_offset", "attn_layer_period", "decoder_sparse_step",
    "first_k_dense_replace", "full_attention_interval", "full_attn_idxs", "global_attn_every_n_layers",
    "hybrid_layer_pattern", "interleave_moe_layer_step", "layer_group_size", "linear_attn_config", "max_window_layers",
    "mlp_only_layers", "moe_layer_freq", "moe_layers_enum", "no_rope_layer_interval", "no_rope_layers",
    "num_dense_layers", "sliding_window_pattern", "_sliding_window_pattern",
)  # fmt: skip


def note_order(config: Config, key: str, kinds: Sequence[str]) -> None:
    """Note kinds of layers that the class alone decides: states among them, or several kinds in an order.

    Args:
        config: the config, which does not say them.
        key: the list that would.
        kinds: the kind of each layer, by the names that the list would give.
    """
    plain = len(set(kinds)) < 2 and not {"mamba", "linear_attention", "conv"} & set(kinds)  # noqa: PLR2004
    if not plain and not any(config.has(other) for other in _ORDERS):
        path = config.key_path(key)
        config.uses[path] = KeyUse(path, list(kinds), "defaulted", "the order of the class")


def dense_first(layers: int, dense: int) -> list[str]:
    """Return MLP kinds of a model whose first layers are dense and whose others are mixtures."""
    return ["dense" if layer < dense else "sparse" for layer in range(layers)]


def mtp_notes(config: Config, *keys: str) -> tuple[str, ...]:
    """Return a note on the multi-token-prediction layers that a config announces; none where it has none."""
    key = next((key for key in keys if config.has(key)), None)
    count = config.integer(key, least=0) if key else 0
    plural = "layer is" if count == 1 else "layers are"
    return (f"{count} multi-token-prediction {plural} not counted",) if count else ()


def stack(
    mixers: Sequence[tuple[Mixer, int]],
    mlps: Sequence[tuple[Mlp, int]],
    *,
    norms: int,
    parallel: bool = False,
    matrices: int = 0,
) -> tuple[Block, ...]:
    """Return the layers made of one mixer and one MLP each, named after what sets them apart.

    Args:
        mixers: each layer's mixer, with its norms, biases and other vectors.
        mlps: each layer's MLP, with its biases.
        norms: vector parameters that every layer has besides.
        parallel: whether mixer and MLP read the same input.
        matrices: matrix parameters that every layer has besides.
    """
    several = len({_mixer_kind(mixer) for mixer, _ in mixers}) > 1
    mixed = len({isinstance(feed, Mixture) for feed, _ in mlps}) > 1
    made: dict[Block, Block] = {}
    blocks = []
    for (mixer, mixer_vectors), (feed, feed_vectors) in zip(mixers, mlps, strict=True):
        kind = "moe" if isinstance(feed, Mixture) else "dense"
        block = Block(
            name="-".join([_mixer_kind(mixer)] * several + [kind] * (mixed or not several)),
            mixers=(mixer,),
            mlp=feed,
            parallel=parallel,
            matrix_parameters=matrices,
            vector_parameters=norms + mixer_vectors + feed_vectors,
        )
        blocks.append(made.setdefault(block, block))
    return tuple(blocks)


def _mixer_kind(mixer: Mixer) -> str:
    if isinstance(mixer, Sliding | Chunked):
        return "local"
    if isinstance(mixer, State):
        return "recurrent"
    if isinstance(mixer, Compressed):
        return _compressed_kind(mixer)
    indexer = mixer.indexer if isinstance(mixer, Full | Latent) else None
    if indexer is None:
        return "global"
    return "indexed" if indexer.stored else "following"


def _compressed_kind(mixer: Compressed) -> str:
    if mixer.entries == "none":
        return "local"
    kind = "compressed" if mixer.entries == "own" else "reading"
    if kind == "reading" and mixer.indexer is not None and mixer.indexer.stored:
        kind = "choosing"
    return f"{kind}-{mixer.ratio}"


def decoder_shape(
    config: Config,
    blocks: tuple[Block, ...],
    *,
    hidden: int,
    vectors: int | None = None,
    head_bias: bool = False,
    matrices: int = 0,
    notes: tuple[str, ...] = (),
    varied: bool = False,
) -> Shape:
    """Return the shape of a decoder with a token table, a last norm (``vectors``, else one weight) and an output head.

    A ``per_layer_config`` is refused unless the rule has read it (``varied``).
    """
    if config.has("per_layer_config") and not varied:
        raise refuse(config, "per_layer_config", "a config whose layers differ key by key")
    embeddings, head = tables(config, hidden=hidden, tied=config.flag("tie_word_embeddings", default=False))
    return Shape(
        hidden_size=hidden,
        context_limit=config.maybe_integer("max_position_embeddings"),
        blocks=blocks,
        embeddings=embeddings,
        head=replace(head, bias=head_bias),
        matrix_parameters=matrices,
        vector_parameters=hidden if vectors is None else vectors,
        notes=notes,
    )


def attention_biases(query: int, kv: int, width: int, hidden: int, *, inputs: bool, output: bool) -> int:
    """Return the bias elements of the projections to queries, keys and values, and of the output projection."""
    return ((query + 2 * kv) * width if inputs else 0) + (hidden if output else 0)


def mlp_biases(inner: int, hidden: int, *, gated: bool = True) -> int:
    """Return the bias elements of an MLP whose matrices all have one."""
    return (2 if gated else 1) * inner + hidden


def refuse(config: Config, key: str, what: str) -> UnsupportedError:
    """Return the error for a key that changes the layers in a way that has no rule."""
    return UnsupportedError(
        f"{what} is not known to kvcalc",
        where=f"{config.where}, {config.key_path(key)}",
        hint="describe the model in a profile",
    )


def layer_kinds(
    config: Config, *keys: str, names: Mapping[str, str], layers: int | None, default: Sequence[str] | None = None
) -> list[str]:
    """Return the kind of each layer from the first of these lists that the config has.

    Args:
        config: the config.
        keys: the list's key and its older names.
        names: every entry that may stand in the list, and the kind it means.
        layers: how many entries the list must have; none where the list itself says how many layers there are.
        default: the kinds where the config has no list; none where it must have one.

    Raises:
        UnsupportedError: an entry that is not in ``names``.
        ProfileError: a list of another length, or none at all.
    """
    key = next((key for key in keys if config.has(key)), keys[0])
    for other in keys:
        if other != key:
            config.pass_over(other, f"{key} gives the layers' kinds")
    if default is not None and not config.has(key):
        names_of_kinds = dict(reversed([(kind, name) for name, kind in names.items()]))
        note_order(config, key, [names_of_kinds.get(kind, kind) for kind in default])
        return list(default)
    entries = config.sequence(key, length=layers)
    if not entries:
        raise config.bad(key, entries, "a list of layer kinds")
    return [names[config.choice(str(entry), tuple(names), key=key, what="the layer kind")] for entry in entries]


def hybrid_layers(
    mixers: Mapping[str, tuple[Mixer, int]],
    mlps: Mapping[str, tuple[Mlp | None, int]],
    layers: Sequence[tuple[str, str]],
    *,
    norms: int,
    matrices: int = 0,
) -> tuple[Block, ...]:
    """Return layers that combine a kind of mixer with a kind of MLP.

    Args:
        mixers: by kind, the mixer and its vector parameters.
        mlps: by kind, the MLP and its vector parameters.
        layers: the two kinds of each layer.
        norms: vector parameters that every layer has besides.
        matrices: matrix parameters that every layer has besides.
    """
    made: dict[tuple[str, str], Block] = {}
    for kind, feed in dict.fromkeys(layers):
        (mixer, mixer_vectors), (mlp_part, mlp_vectors) = mixers[kind], mlps[feed]
        made[kind, feed] = Block(
            name=kind if len(mlps) == 1 else f"{kind}-{feed}",
            mixers=(mixer,),
            mlp=mlp_part,
            matrix_parameters=matrices,
            vector_parameters=norms + mixer_vectors + mlp_vectors,
        )
    return tuple(made[layer] for layer in layers)
