"""Inkling: attention beside short convolutions over keys, values and both residual branches.

The relative positions of a layer are a projection of the hidden state to ``d_rel`` numbers a head, and a table over the
distances that it can see: the window of a local layer, ``rel_extent`` of a global one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Full, Gated, Head, Mixture, Sliding, State
from kvcalc.importers.families.shape import decoder_shape, layer_list, mtp_notes, windowed

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule, Shape

__all__ = ["RULES"]

_LOCAL, _GLOBAL = "hybrid_sliding", "hybrid"
_CONVOLUTIONS_OF_THE_HIDDEN_STATE = 2
# For queries, keys, values and the MLP.
_MESSAGES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attention:
    """Sizes of one kind of layer's attention.

    Args:
        query: query heads.
        kv: key-value heads.
        width: width of a head.
        window: tokens it sees; none for all.
        extent: distances that its relative positions tell apart.
    """

    query: int
    kv: int
    width: int
    window: int | None
    extent: int

    def mixers(self, hidden: int, kernel: int) -> tuple[Mixer, ...]:
        """Return the attention and the convolutions, whose last ``kernel`` inputs are kept in 32 bits."""
        channels = 2 * self.kv * self.width + _CONVOLUTIONS_OF_THE_HIDDEN_STATE * hidden
        convolutions = State(
            variant="short_conv",
            heads=channels,
            key_dim=kernel,
            value_dim=1,
            conv_channels=channels,
            conv_kernel=kernel,
            recurrent_format="fp32",
        )
        return windowed(self.query, self.kv, self.width, self.window), convolutions


def _attentions(config: Config) -> dict[str, _Attention]:
    window = config.integer("sliding_window_size")
    return {
        _LOCAL: _Attention(
            query=config.integer("swa_num_attention_heads"),
            kv=config.integer("swa_num_key_value_heads"),
            width=config.integer("swa_head_dim"),
            window=window,
            extent=window,
        ),
        _GLOBAL: _Attention(
            query=config.integer("num_attention_heads"),
            kv=config.integer("num_key_value_heads"),
            width=config.integer("head_dim"),
            window=None,
            extent=config.integer("rel_extent"),
        ),
    }


def _kinds(config: Config, layers: int) -> list[str]:
    """Return each layer's kind: by a list, by the numbers of the local layers, or every sixth global."""
    local = {index for index in range(layers) if (index + 1) % 6}
    if config.has("local_layer_ids"):
        local = set(config.sequence("local_layer_ids"))
    default = [_LOCAL if index in local else _GLOBAL for index in range(layers)]
    return layer_list(config, "layer_types", layers=layers, known=(_LOCAL, _GLOBAL), default=default)


def _shape(config: Config, blocks: list[Block], hidden: int, *, vectors: int) -> Shape:
    """Return a decoder with a norm on the embeddings and a head of its own."""
    notes = mtp_notes(config, "num_mtp_layers")
    shape = decoder_shape(config, tuple(blocks), hidden=hidden, vectors=vectors, notes=notes)
    return replace(shape, head=Head(rows=shape.embeddings[0].rows))


def inkling(config: Config) -> Shape:
    """Inkling: norms on queries and keys, mixtures whose router also weighs the shared experts.

    The head has as many rows as the token table; ``unpadded_vocab_size`` cuts its logits alone.

    Where a config has ``dense_intermediate_size``, ``intermediate_size`` is the width of an expert.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    kernel, rel = config.integer("conv_kernel_size"), config.integer("d_rel")
    dense_width, width = config.integer("intermediate_size"), config.maybe_integer("moe_intermediate_size")
    if config.has("dense_intermediate_size"):
        dense_width, width = config.integer("dense_intermediate_size"), dense_width
    shared = config.integer("n_shared_experts", least=0)
    experts = Mixture(
        experts=config.integer("n_routed_experts", "num_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=width or config.integer("moe_intermediate_size"),
        shared_width=shared * (width or 0),
    )
    first = config.integer("dense_mlp_idx", default=0, least=0)
    default = ["dense" if index < first else "sparse" for index in range(layers)]
    feeds = layer_list(config, "mlp_layer_types", layers=layers, known=("dense", "sparse"), default=default)
    attentions = _attentions(config)
    blocks = []
    for kind, feed in zip(_kinds(config, layers), feeds, strict=True):
        of = attentions[kind]
        channels = 2 * of.kv * of.width + _CONVOLUTIONS_OF_THE_HIDDEN_STATE * hidden
        block = Block(
            name=f"{'local' if kind == _LOCAL else 'global'}-{feed}",
            mixers=of.mixers(hidden, kernel),
            mlp=experts if feed == "sparse" else Gated(width=dense_width),
            matrix_parameters=of.query * rel * hidden + rel * of.extent + (shared * hidden if feed == "sparse" else 0),
            vector_parameters=2 * hidden + 2 * of.width + channels * kernel + 1,
        )
        blocks.append(block)
    return _shape(config, blocks, hidden, vectors=2 * hidden)


def _inkling2_block(
    config: Config, of: _Attention, experts: Mixture, hidden: int, *, local: bool, first: bool
) -> Block:
    """Return one layer of Inkling 2; a global one mixes the inputs of queries, keys and values apart.

    A global layer's convolutions weigh each head's columns by the token, a local layer's are fixed.
    """
    kernel, rel = config.integer("conv_kernel_size"), config.integer("d_rel")
    matrices = of.query * of.width * hidden + of.query * hidden  # gate on the output, sinks
    matrices += of.query * rel * hidden + rel * of.extent
    inputs = 1 if local else 3
    norms = of.query * of.width + of.query * rel + (1 + inputs) * hidden
    mixing = hidden + (0 if first else inputs * hidden)
    convolved = 2 * of.kv * of.width + _CONVOLUTIONS_OF_THE_HIDDEN_STATE * hidden
    return Block(
        name=("local" if local else "global") + "-first" * first,
        mixers=of.mixers(hidden, kernel),
        mlp=experts,
        matrix_parameters=matrices + (0 if local else 2 * kernel * of.kv * hidden),
        vector_parameters=norms + mixing + convolved * kernel,
    )


def inkling2(config: Config) -> Shape:
    """Inkling 2: attention over the residuals of earlier blocks, gates on the attention's output, a sink a token."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    experts = Mixture(
        experts=config.integer("n_routed_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=config.integer("moe_intermediate_size"),
    )
    attentions = _attentions(config)
    blocks = [
        _inkling2_block(config, attentions[kind], experts, hidden, local=kind == _LOCAL, first=index == 0)
        for index, kind in enumerate(_kinds(config, layers))
    ]
    shape = _shape(config, blocks, hidden, vectors=3 * hidden)
    return replace(shape, head=Head(rows=config.integer("unpadded_vocab_size")))


def inkling2_loop(config: Config) -> Shape:
    """Inkling 2 whose middle layers are passed several times, each pass with a cache and states of its own.

    Layers of the loop have four gates on messages from the pass before. In a further pass the experts that a token
    chooses stand as an MLP of their width together, whose weights the first pass has.
    """
    shape, hidden = inkling2(config), config.integer("hidden_size")
    loop = config.child("loop_config")

    def setting(old: str, key: str) -> int:
        return loop.integer(old) if loop.has(old) else config.integer(key)

    start, end = setting("core_start", "loop_layer_index_start"), setting("core_end", "loop_layer_index_end")
    passes, rank = setting("num_passes", "loop_num_passes"), setting("gate_rank", "loop_gate_rank")
    if end < start:
        raise config.bad("loop_layer_index_end", end, f"a layer behind {start}, where the loop begins")
    gates = _MESSAGES * 2 * hidden * 2 * rank
    run = tuple(
        replace(block, name=f"{block.name}-loop", matrix_parameters=block.matrix_parameters + gates)
        for block in shape.blocks[start:end]
    )
    blocks = (*shape.blocks[:start], *run, *map(_again, run * (passes - 1)), *shape.blocks[end:])
    vectors = shape.vector_parameters + (end - start) * _MESSAGES * hidden
    notes = (f"{len(run)} layers are passed {passes} times",) if run and passes > 1 else ()
    return replace(shape, blocks=blocks, vector_parameters=vectors, notes=(*shape.notes, *notes))


def _again(block: Block) -> Block:
    """Return a layer passed once more, without weights of its own."""
    mixers = tuple(
        replace(mixer, shared_weights=True) if isinstance(mixer, Full | Sliding) else mixer for mixer in block.mixers
    )
    feed = block.mlp
    if isinstance(feed, Mixture):
        feed = Gated(width=feed.experts_per_token * feed.width, shared_weights=True)
    return replace(block, name=f"{block.name}-again", mixers=mixers, mlp=feed, matrix_parameters=0, vector_parameters=0)


RULES: dict[str, Rule] = {
    "inkling2_loop_text": inkling2_loop,
    "inkling2_text": inkling2,
    "inkling_text": inkling,
}
