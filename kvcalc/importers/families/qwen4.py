"""Qwen4-Exp: gated delta nets, attention with an indexer, hyper-connections, and n-gram tables beside some layers."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Indexer, State, Table
from kvcalc.core.units import ceil_div
from kvcalc.importers.families.linear_attention import qwen_attention, qwen_delta_net, qwen_mixture
from kvcalc.importers.families.shape import Shape, decoder_shape, layer_kinds, mtp_notes, refuse

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]

_KINDS = {"linear_attention": "delta", "indexed_attention": "attention", "full_attention": "attention"}
# No published table is near; a search for primes beyond would take long.
_LARGEST_TABLE, _MAX_HEADS = 10**9, 1024
# The last tokens' ids, which choose the n-grams, are kept as 64-bit integers.
_ID_BYTES = 8


def qwen4_exp(config: Config) -> Shape:
    """Three delta nets to one attention whose indexer pools keys of ``indexer_compress_ratio`` tokens.

    Each half of a layer reads ``hc_count`` residual streams through a low-rank map and writes to all of them. Layers of
    ``ple_layer_ids`` (counted from 1) add embeddings of the last n-grams, convolved over the streams.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    default = ["attention" if (index + 1) % 4 == 0 else "delta" for index in range(layers)]
    if config.has("full_attention_interval"):
        every = config.integer("full_attention_interval")
        default = ["delta" if (index + 1) % every else "attention" for index in range(layers)]
    kinds = layer_kinds(config, "layer_types", names=_KINDS, layers=layers, default=default)
    made = {"delta": qwen_delta_net(config, hidden), "attention": _indexed_attention(config, hidden)}
    streams, rank = config.integer("hc_count"), config.integer("hc_lowrank")
    wide, experts = streams * hidden, qwen_mixture(config)
    embedded = {int(index) - 1 for index in config.sequence("ple_layer_ids", default=None)}
    blocks = []
    for index, kind in enumerate(kinds):
        mixer, vectors = made[kind]
        block = Block(
            name=kind,
            mixers=(mixer,),
            mlp=experts,
            matrix_parameters=2 * wide * (2 * rank + streams),
            vector_parameters=2 * wide + vectors,
        )
        blocks.append(_with_ngrams(config, block, hidden, wide) if index in embedded else block)
    shape = decoder_shape(
        config,
        tuple(blocks),
        hidden=hidden,
        vectors=wide,
        matrices=2 * wide * rank,
        notes=mtp_notes(config, "mtp_num_hidden_layers", "num_nextn_predict_layers"),
    )
    return replace(shape, embeddings=(*shape.embeddings, *_ngram_tables(config, len(embedded))))


def _indexed_attention(config: Config, hidden: int) -> tuple[Mixer, int]:
    if not config.flag("attn_output_gate", default=True):
        raise refuse(config, "attn_output_gate", "a Qwen4-Exp without a gate on the attention's output")
    mixer, vectors = qwen_attention(config, hidden)
    indexer = Indexer(
        heads=config.integer("indexer_n_heads"),
        head_dim=config.integer("indexer_head_dim"),
        top_k=config.integer("indexer_budget"),
        query_inputs=hidden,
        head_weights=False,
        pool=config.integer("indexer_compress_ratio"),
    )
    if config.integer("indexer_kv_heads", default=1) != 1:
        raise config.bad("indexer_kv_heads", config.raw("indexer_kv_heads"), "1")
    return replace(mixer, indexer=indexer), vectors + 2 * indexer.head_dim


def _with_ngrams(config: Config, block: Block, hidden: int, wide: int) -> Block:
    """Return a layer that adds n-gram embeddings and keeps the tokens and columns that its convolution reaches."""
    width, kernel = _ngram_width(config), config.integer("ple_conv_kernel_size")
    size = config.integer("ngram_size")
    state = State(
        variant="short_conv",
        conv_channels=wide,
        conv_window=(kernel - 1) * size,
        conv_kernel=kernel,
        extra_state_bytes=_ID_BYTES * (size - 1),
        matrix_parameters=(wide + hidden) * width,
    )
    return replace(
        block,
        name=f"{block.name}-ngram",
        mixers=(*block.mixers, state),
        vector_parameters=block.vector_parameters + (3 + kernel) * wide,
    )


def _ngram_width(config: Config) -> int:
    return config.integer_or(config.integer("hidden_size"), "ple_embed_dim")


def _ngram_tables(config: Config, count: int) -> tuple[Table, ...]:
    """Return the tables: each head of each n-gram has a prime number of rows, the next ones after the base."""
    heads = (config.integer("ngram_size") - 1) * config.integer("heads_per_ngram")
    base, multiple = config.integer("ngram_vocab_size_base"), config.integer("make_ngram_vocab_size_divisible_by")
    width = _ngram_width(config)
    if not count:
        return ()
    if base > _LARGEST_TABLE or heads * count > _MAX_HEADS or not heads or width % heads:
        raise config.bad("ngram_vocab_size_base", base, f"at most {_LARGEST_TABLE} rows for heads that divide {width}")
    rows = _primes(base, heads * count)
    padded = [ceil_div(sum(rows[start : start + heads]), multiple) * multiple for start in range(0, len(rows), heads)]
    return tuple(
        Table(name=f"ngram-{index + 1}", rows=size, width=width // heads, lookups=heads, part="lookup")
        for index, size in enumerate(padded)
    )


def _primes(start: int, count: int) -> list[int]:
    """Return the first primes from a number on.

    >>> _primes(14, 3)
    [17, 19, 23]
    """
    primes: list[int] = []
    number = max(start, 2)
    while len(primes) < count:
        if all(number % divisor for divisor in range(2, isqrt(number) + 1)):
            primes.append(number)
        number += 1
    return primes


RULES: dict[str, Rule] = {"qwen4_exp_text": qwen4_exp}
