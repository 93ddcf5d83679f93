"""DeepSeek-V4.1: a few layers keep compressed entries and index keys for those behind them; two look n-grams up.

Source: vLLM 0.33, ``models/deepseek_v41`` (``attention.py``, ``compressor.py``, ``common/engram.py``); Engram, arXiv
2601.07372.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Compressed, Indexer, Lookup, Mixture, Table
from kvcalc.importers.families.latent import latent_mtp
from kvcalc.importers.families.shape import Shape, decoder_shape, stack

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]

# Tokens behind one compressed entry; 0 is the window alone.
_RATIOS = (0, 1, 2)


def deepseek_v41(config: Config) -> Shape:
    """A window in every layer; beside it, entries for one or two tokens that the nearest source before it keeps.

    Layers of ``kv_source_layer_ids`` keep entries and index keys, those of ``index_source_layer_ids`` choose entries,
    and the others read what was chosen last. Hyper-connections stand for residuals.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    if config.integer("n_shared_experts", default=1) != 1:
        raise config.bad("n_shared_experts", config.raw("n_shared_experts"), "1")
    width, experts = config.integer("moe_intermediate_size"), config.integer("n_routed_experts")
    mixture = Mixture(
        experts=experts,
        experts_per_token=config.integer("num_experts_per_tok"),
        width=width,
        shared_width=width,
    )
    streams = config.integer("hc_mult")
    mixing = (2 + streams) * streams
    blocks = stack(
        _mixers(config, layers),
        [(mixture, experts)] * layers,  # a bias for each expert, which the choice is corrected by
        norms=2 * hidden + 2 * (mixing + 3),
        matrices=2 * mixing * streams * hidden,
    )
    blocks, tables = _with_lookups(config, blocks, hidden, streams)
    shape = decoder_shape(config, blocks, hidden=hidden, notes=latent_mtp(config))
    wide = layers * (experts + 2 * (mixing + 3) + config.integer("num_attention_heads"))
    return replace(shape, embeddings=(*shape.embeddings, *tables), formats=_formats(shape, tables, wide=wide))


def _formats(shape: Shape, tables: list[Table], *, wide: int) -> dict[str, str]:
    """Return the formats of what the checkpoint keeps in its own way, beside the dtype's 16 bits.

    Hyper-connections, the routers' biases and the sinks (``wide`` vector elements) are in 32 bits, the rows of n-grams
    in fp8 with 8-bit scales.
    """
    matrices = sum(block.matrix_parameters for block in shape.blocks)
    vectors = shape.vector_parameters + sum(block.vector_parameters for block in shape.blocks)
    formats = {
        "other": f"mixed-{4 * matrices}/{matrices}:bf16",
        "vector": f"mixed-{2 * (vectors + wide)}/{vectors}:bf16",
    }
    return formats | {"lookup": "mxfp8"} if tables else formats


def _mixers(config: Config, layers: int) -> list[tuple[Mixer, int]]:
    """Return each layer's attention and its vectors, by the sources of entries and of indices before it."""
    ratios = [_ratio(config, entry) for entry in config.sequence("compress_ratios")]
    if len(ratios) < layers:
        raise config.bad("compress_ratios", f"{len(ratios)} entries", f"at least {layers}, one for each layer")
    keeps, chooses = (_sources(config, key, layers) for key in ("kv_source_layer_ids", "index_source_layer_ids"))
    picks = config.integer_or(layers, "candidate_source_layer_id", least=-1)
    made = []
    for layer, ratio in enumerate(ratios[:layers]):
        source = keeps[layer]
        if ratio and (source is None or ratios[source] != ratio):
            before = "none" if source is None else f"layer {source} with a ratio of {ratios[source]}"
            raise config.bad("kv_source_layer_ids", before, f"a source of ratio {ratio} up to layer {layer}")
        own, index = source == layer, chooses[layer] == layer
        made.append(_attention(config, ratio, keeps=own, chooses=index, narrowed=0 <= picks < layer))
    return made


def _ratio(config: Config, entry: object) -> int:
    return int(config.choice(str(entry), tuple(map(str, _RATIOS)), key="compress_ratios", what="the ratio"))


def _sources(config: Config, key: str, layers: int) -> list[int | None]:
    """Return for each layer the last source up to it; none before the first."""
    listed = config.sequence(key, default=None)
    if any(not isinstance(entry, int) or isinstance(entry, bool) or not 0 <= entry < layers for entry in listed):
        raise config.bad(key, listed, f"layers below {layers}")
    last: int | None = None
    sources = []
    for layer in range(layers):
        last = layer if layer in listed else last
        sources.append(last)
    return sources


def _attention(config: Config, ratio: int, *, keeps: bool, chooses: bool, narrowed: bool) -> tuple[Mixer, int]:
    """Return one kind of attention, with its norms and sinks."""
    heads, dim, rank = config.integer("num_attention_heads"), config.integer("head_dim"), config.integer("q_lora_rank")
    index_dim = config.integer("index_head_dim")
    indexer = None
    if ratio:
        candidates = config.integer("candidate_topk_blocks", default=0, least=0)
        candidates *= config.integer("candidate_block_size", default=0, least=0)
        indexer = Indexer(
            heads=config.integer("index_n_heads"),
            head_dim=index_dim,
            top_k=config.integer("index_topk"),
            query_inputs=rank,
            stored=chooses,
            own_keys=keeps,
            candidates=candidates if narrowed and candidates else None,
            matrix_parameters=dim * index_dim if keeps else 0,
        )
    mixer = Compressed(
        heads=heads,
        head_dim=dim,
        window=config.integer("sliding_window"),
        ratio=ratio or 1,
        overlap=False,
        q_lora_rank=rank,
        output_groups=config.integer("o_groups"),
        output_rank=config.integer("o_lora_rank"),
        indexer=indexer,
        entries="none" if not ratio else "own" if keeps else "earlier",
        index_from_entries=True,
    )
    return mixer, rank + dim + heads + (dim + index_dim if keeps else 0)


def _with_lookups(
    config: Config, blocks: tuple[Block, ...], hidden: int, streams: int
) -> tuple[tuple[Block, ...], list[Table]]:
    """Return the layers, of which those of ``engram_layer_ids`` add rows of n-grams, and the tables of these rows."""
    listed = config.sequence("engram_layer_ids", default=None)
    if not listed:
        return blocks, []
    rows = config.sequence("engram_num_embeddings", length=len(listed))
    width, heads = config.integer("engram_head_dim"), config.integer("engram_n_heads")
    columns = (config.integer("engram_max_ngram_size") - 1) * heads
    lookup = Lookup(inputs=columns * width, outputs=(streams + 1) * hidden)
    with_tables, tables = list(blocks), []
    for layer, size in zip(listed, rows, strict=True):
        if not isinstance(layer, int) or not 0 <= layer < len(blocks):
            raise config.bad("engram_layer_ids", layer, f"a layer below {len(blocks)}")
        if not isinstance(size, int) or isinstance(size, bool) or size < columns:
            raise config.bad("engram_num_embeddings", size, f"a number of rows, at least {columns}")
        block = with_tables[layer]
        gates = 2 * streams * hidden  # weights of the norms that the gate compares stream and key by
        with_tables[layer] = replace(
            block, name=f"{block.name}-ngram", lookup=lookup, vector_parameters=block.vector_parameters + gates
        )
        tables.append(Table(name=f"ngram-{layer}", rows=size, width=width, lookups=columns, part="lookup"))
    return tuple(with_tables), tables


RULES: dict[str, Rule] = {"deepseek_v41_text": deepseek_v41}
