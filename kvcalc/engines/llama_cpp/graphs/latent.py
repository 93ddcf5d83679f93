"""Latent attention (DeepSeek-V2 and V3), and its sparse indexer (DeepSeek-V3.2, GLM-5).

Source: llama.cpp commit 0c1e57098bba, ``src/models/deepseek2.cpp`` and ``deepseek32.cpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.engines.llama_cpp.graphs.shapes import Attention
from kvcalc.engines.llama_cpp.graphs.tensors import F16, F32, I32, Tensor

if TYPE_CHECKING:
    from kvcalc.core.model import Indexer, Latent
    from kvcalc.engines.llama_cpp.graphs.context import Context
    from kvcalc.engines.llama_cpp.graphs.shapes import Cells

__all__ = ["latent"]


def latent(ctx: Context, mixer: Latent, current: Tensor, *, cells: Cells, index_cells: Cells | None) -> Tensor:
    """Return latent attention, absorbed: the query is brought into the latent space, values back out of it.

    Args:
        ctx: the graph.
        mixer: the attention.
        current: the normed input of the layer.
        cells: the cache of latent vectors.
        index_cells: the cache of index keys, where there is an indexer.
    """
    heads, rank, turned = mixer.heads, mixer.kv_lora_rank, mixer.rope_dim
    width = mixer.nope_dim + turned
    source, name = current, "attn_q"
    if mixer.q_lora_rank:
        source, name = ctx.norm(ctx.linear("attn_q_a", current, mixer.q_lora_rank), "attn_q_a_norm"), "attn_q_b"
    best = None
    if mixer.indexer is not None and index_cells is not None:
        best = _indexed(ctx, mixer.indexer, source, current, index_cells)
    whole = ctx.linear(name, source, heads * width)
    row = whole.nb[1]
    plain = ctx.view(whole, (mixer.nope_dim, heads, ctx.tokens), (4, 4 * width, row))
    rotated = ctx.rope(ctx.view(whole, (turned, heads, ctx.tokens), (4, 4 * width, row)))
    both = ctx.linear("attn_kv_a_mqa", current, rank + turned)
    compressed = ctx.view(both, (rank, ctx.tokens), (4, both.nb[1]))
    shared = ctx.rope(ctx.view(both, (turned, 1, ctx.tokens), (4, both.nb[1], both.nb[1])))
    compressed = ctx.norm(compressed, "attn_kv_a_norm")
    absorbed = ctx.matmul(ctx.weight("attn_k_b", mixer.nope_dim, rank, heads), ctx.permute(plain, 0, 2, 1, 3))
    query = ctx.concat(ctx.permute(absorbed, 0, 2, 1, 3), rotated, 0)
    value = ctx.reshape(compressed, rank, 1, ctx.tokens)
    key = ctx.concat(value, shared, 0)
    return _attended(ctx, mixer, (query, key, value), cells, best)


def _attended(
    ctx: Context, mixer: Latent, parts: tuple[Tensor, Tensor, Tensor], cells: Cells, best: Tensor | None
) -> Tensor:
    """Return attention over the latent cache, whose keys are the values too."""
    query, key, value = parts
    for tensor in (query, value, key):
        ctx.expand(tensor)
    keys = ctx.store_keys(cells, key, ctx.batch.key)
    mask = ctx.mask(cells)
    if best is not None:
        mask = _masked(ctx, mask, best)
    values = ctx.view(keys, (mixer.kv_lora_rank, *keys.ne[1:]), keys.nb)
    up = ctx.weight("attn_v_b", mixer.kv_lora_rank, mixer.value_head_dim, mixer.heads)
    shape = Attention(heads=mixer.heads, kv_heads=1, key=key.ne[0], value=mixer.kv_lora_rank)
    attended = ctx.attend(shape, query, keys, values, mask, up)
    return ctx.linear("attn_output", attended, ctx.hidden)


def _indexed(ctx: Context, indexer: Indexer, source: Tensor, current: Tensor, cells: Cells) -> Tensor:
    """Return the places of the best entries of each token."""
    heads, width = indexer.heads, indexer.head_dim
    query = ctx.rope(ctx.heads(ctx.linear("indexer.attn_q_b", source, heads * width), width, heads))
    key = ctx.norm(ctx.linear("indexer.attn_k", current, width), "indexer.k_norm", kind="norm", bias=True)
    key = ctx.rope(ctx.heads(key, width, 1))
    if cells.key_rotation is None:
        cells.key_rotation = ctx.given(F32, width, width)
    query, key = ctx.matmul(cells.key_rotation, query), ctx.matmul(cells.key_rotation, key)
    keys = ctx.store_keys(cells, key, ctx.batch.key)
    weights = ctx.linear("indexer.proj", current, heads)
    streams = ctx.batch.streams
    each = ctx.tokens // streams
    query = ctx.view(query, (width, heads, each, streams), (4, query.nb[1], query.nb[2], query.nb[3] // streams))
    strides = (4, weights.nb[1], weights.nb[2] // streams, weights.nb[3] // streams)
    weights = ctx.like("scale", ctx.view(weights, (heads, each, 1, streams), strides))
    if cells.mask is None:
        cells.mask = ctx.given(F16, cells.cells, each, 1, streams)
    ne = (cells.cells, each, 1, streams)
    scores = Tensor("lightning_indexer", F32, ne, (query, keys, weights, cells.mask))
    count = min(cells.cells, indexer.top_k)
    return ctx.cont(Tensor("top_k", I32, (count, *ne[1:]), (scores,)))


def _masked(ctx: Context, mask: Tensor, best: Tensor) -> Tensor:
    """Return the mask with all but the best entries hidden."""
    empty = ctx.like("fill", mask)
    cells, each, _, streams = mask.ne
    rows = ctx.view(empty, (1, cells, each, streams), (empty.type.size, empty.nb[0], empty.nb[1], empty.nb[2]))
    places = ctx.view(best, (best.ne[0], each, streams, 1), (4, best.nb[1], best.nb[2], best.ne[3] * best.nb[3]))
    zeros = ctx.like("fill", Tensor("none", F32, (1, best.ne[0], each, streams)))
    open_ = ctx.store(rows, zeros, places)
    back = ctx.view(open_, (cells, each, 1, streams), (open_.type.size, open_.nb[2], open_.nb[3], open_.nb[3]))
    return ctx.like("add", back, mask)
