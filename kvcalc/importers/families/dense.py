"""Decoders whose layers are all alike: full attention and one MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Full
from kvcalc.importers.families.shape import Shape, heads, mlp, tables

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]


def llama(config: Config, *, qkv_bias: bool = False, qk_norm: bool = False, norms: int = 2) -> Shape:
    """RMSNorm, rotary positions, grouped heads, gated MLP: the decoder that most others vary.

    Args:
        config: the config.
        qkv_bias: whether queries, keys and values have biases whatever the config says.
        qk_norm: whether queries and keys are normalised head by head.
        norms: norm vectors of the hidden size in a layer.
    """
    hidden = config.integer("hidden_size")
    query, kv, width = heads(config, hidden=hidden)
    inner = config.integer("intermediate_size")
    all_bias = config.flag("attention_bias", default=False)
    vectors = norms * hidden
    vectors += (query + 2 * kv) * width if qkv_bias or all_bias else 0
    vectors += hidden if all_bias and not qkv_bias else 0
    vectors += 2 * width if qk_norm else 0
    vectors += 2 * inner + hidden if config.flag("mlp_bias", default=False) else 0
    block = Block(
        name="decoder",
        mixers=(Full(heads=query, kv_heads=kv, head_dim=width),),
        mlp=mlp(inner),
        vector_parameters=vectors,
    )
    embeddings, head = tables(config, hidden=hidden, tied=config.flag("tie_word_embeddings", default=False))
    return Shape(
        hidden_size=hidden,
        context_limit=config.maybe_integer("max_position_embeddings"),
        blocks=(block,) * config.integer("num_hidden_layers"),
        embeddings=embeddings,
        head=head,
        vector_parameters=hidden,
    )


RULES: dict[str, Rule] = {
    "llama": llama,
}
