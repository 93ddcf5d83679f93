"""Architectures found by a search: every layer has its own shape, and some lack a part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import ProfileError
from kvcalc.core.model import Block, Full
from kvcalc.core.units import ceil_div
from kvcalc.importers.config_reader import Config
from kvcalc.importers.families.shape import Shape, attention_biases, decoder_shape, head_width, mlp, mlp_biases, refuse

if TYPE_CHECKING:
    from kvcalc.core.model import Mlp
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]

# Variations of a part that change what it stores, and that no published checkpoint uses.
_ATTENTION_EXTRAS = ("window_length", "num_sink_tokens", "sparsify", "unshifted_sink", "mamba", "llama4")
_MLP_EXTRAS = ("sparsify", "moe")


def nemotron_nas(config: Config) -> Shape:
    """Llama-Nemotron: a Llama whose layers ``block_configs`` describes one by one.

    Attention may be left out, be one square matrix, or have its own number of query heads to a KV head; the MLP may be
    left out, be one square matrix, or have its own width (``ffn_mult``, two thirds of it, rounded up to 256).

    Source: Bercovich et al. 2024, arXiv 2411.19146.
    """
    hidden = config.integer("hidden_size")
    entries = config.sequence("block_configs", length=config.integer("num_hidden_layers"))
    made: dict[str, Block] = {}
    blocks = []
    for layer, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise config.bad("block_configs", entry, "a list of mappings")
        path = f"{config.key_path('block_configs')}[{layer}]"
        part = Config(entry, where=config.where, path=path, uses=config.uses, absent=config.absent)
        block = _block(config, part, hidden)
        blocks.append(made.setdefault(str(block), block))
    return decoder_shape(config, tuple(blocks), hidden=hidden)


def _block(config: Config, part: Config, hidden: int) -> Block:
    mixer, matrices, vectors = _attention(config, part.child("attention"), hidden)
    feed, feed_matrices, feed_vectors = _feed(config, part.child("ffn"), hidden)
    names = [f"attention-{mixer.kv_heads}"] if mixer else ["linear"] if matrices else []
    names += [f"mlp-{feed.width}"] if feed else ["linear"] if feed_matrices else []
    return Block(
        name="+".join(names) or "empty",
        mixers=() if mixer is None else (mixer,),
        mlp=feed,
        matrix_parameters=matrices + feed_matrices,
        vector_parameters=vectors + feed_vectors,
    )


def _attention(config: Config, part: Config, hidden: int) -> tuple[Full | None, int, int]:
    """Return a layer's attention, matrix elements in its place, and its vectors, the norm before it included."""
    _refuse_extras(part, _ATTENTION_EXTRAS, "attention")
    bias = config.flag("attention_bias", default=False)
    if part.flag("no_op", default=False):
        return None, 0, 0
    if part.flag("replace_with_linear", default=False):
        return None, hidden * hidden, hidden + (hidden if bias else 0)
    query, group = config.integer("num_attention_heads"), part.integer("n_heads_in_group")
    if query % group:
        raise part.bad("n_heads_in_group", group, f"a divisor of {query} heads")
    kv, width = query // group, head_width(config, hidden, query, "head_dim")
    biases = attention_biases(query, kv, width, hidden, inputs=bias, output=bias)
    return Full(heads=query, kv_heads=kv, head_dim=width), 0, hidden + biases


def _feed(config: Config, part: Config, hidden: int) -> tuple[Mlp | None, int, int]:
    """Return a layer's MLP, matrix elements in its place, and its vectors, the norm before it included."""
    _refuse_extras(part, _MLP_EXTRAS, "MLP")
    if part.flag("no_op", default=False):
        return None, 0, 0
    if part.flag("replace_with_linear", default=False):
        return None, hidden * hidden, hidden
    if not part.has("ffn_mult") and not part.has("intermediate_size"):
        raise ProfileError("an MLP without ffn_mult", where=f"{part.where}, {part.path}")
    inner = (
        part.maybe_integer("intermediate_size") or ceil_div(int(2 * part.number("ffn_mult") * hidden / 3), 256) * 256
    )
    return mlp(inner), 0, hidden + (mlp_biases(inner, hidden) if config.flag("mlp_bias", default=False) else 0)


def _refuse_extras(part: Config, keys: tuple[str, ...], what: str) -> None:
    for key in keys:
        if part.raw(key, default=None) not in (None, False):
            raise refuse(part, key, f"{key} of a layer's {what}")


RULES: dict[str, Rule] = {
    "nemotron-nas": nemotron_nas,
}
