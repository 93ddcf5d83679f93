"""Gemma 3n: four streams of the hidden state, of which each layer computes with one and corrects all.

Source: llama.cpp commit 0c1e57098bba, ``src/models/gemma3n.cpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Shared
from kvcalc.engines.llama_cpp.graphs.tensors import F32, Tensor

if TYPE_CHECKING:
    from kvcalc.core.model import Block
    from kvcalc.engines.llama_cpp.graphs.context import Context
    from kvcalc.engines.llama_cpp.graphs.shapes import Attention, Cells

__all__ = ["SPARSE_LAYERS", "gemma3n_layer", "joined_streams", "split_streams"]

# Streams, the rank of the residual's projection, and the first layers whose MLPs are made sparse.
_STREAMS, _RANK, SPARSE_LAYERS = 4, 64, 10


def split_streams(ctx: Context, current: Tensor) -> Tensor:
    """Return the streams that the embedded tokens are projected to."""
    others = ctx.repeat(current, ctx.hidden, ctx.tokens, _STREAMS - 1, 1)
    table = ctx.weight("altup_proj", ctx.hidden, ctx.hidden, _STREAMS - 1, outside=True)
    return ctx.concat(current, _as_large(ctx, ctx.matmul(table, others), current), 2)


def joined_streams(ctx: Context, streams: Tensor) -> Tensor:
    """Return the mean of the streams, those but the first projected back."""
    table = ctx.weight("altup_unembd_proj", ctx.hidden, ctx.hidden, _STREAMS - 1, outside=True)
    back = _as_large(ctx, ctx.matmul(table, _others(ctx, streams)), _stream(ctx, streams))
    current = _stream(ctx, streams)
    for _ in range(_STREAMS - 1):
        current = ctx.like("add", current, _stream(ctx, back))
    return ctx.like("scale", current)


def _as_large(ctx: Context, current: Tensor, model: Tensor) -> Tensor:
    """Return vectors scaled to the length of others."""
    target, length = (ctx.like("sqrt", ctx.sum_rows(ctx.like("sqr", vectors))) for vectors in (model, current))
    return ctx.like("div", ctx.like("mul", current, target), length)


def _stream(ctx: Context, streams: Tensor) -> Tensor:
    return ctx.view(streams, (streams.ne[0], streams.ne[1]), (streams.type.size, streams.nb[1]))


def _others(ctx: Context, streams: Tensor) -> Tensor:
    return ctx.view(streams, (streams.ne[0], streams.ne[1], _STREAMS - 1), streams.nb)


def gemma3n_layer(
    ctx: Context, block: Block, streams: Tensor, *, shape: Attention, cells: Cells, source: int, inputs: Tensor
) -> Tensor:
    """Return a layer's output: the corrected streams.

    Args:
        ctx: the graph.
        block: the layer.
        streams: its input.
        shape: its heads.
        cells: its cache, or that of the layer whose keys and values it reads.
        source: that layer.
        inputs: further inputs of all layers.
    """
    predicted = _predicted(ctx, streams)
    active = _stream(ctx, predicted)
    normed = ctx.norm(active, "attn_norm")
    low = ctx.linear("laurel_r", ctx.linear("laurel_l", normed, _RANK), ctx.hidden)
    low = ctx.like("add", ctx.norm(low, "laurel_post_norm"), normed)
    attended = _attended(ctx, block, normed, shape=shape, cells=cells, source=source)
    attended = ctx.like("add", ctx.norm(attended, "post_attention_norm"), active)
    middle = ctx.like("scale", ctx.like("add", attended, low))
    inner = ctx.norm(_mlp(ctx, ctx.norm(middle, "ffn_norm"), getattr(block.mlp, "width", 0)), "post_ffw_norm")
    corrected = _corrected(ctx, predicted, ctx.like("add", inner, middle))
    first = ctx.like("mul", _stream(ctx, corrected), ctx.weight("altup_correct_scale", ctx.hidden))
    first = ctx.unary(ctx.linear("inp_gate", first, inputs.ne[0]))
    first = ctx.linear("proj", ctx.like("mul", first, _stream(ctx, inputs)), ctx.hidden)
    first = ctx.norm(first, "post_norm")
    kept = _stream(ctx, corrected)
    return ctx.concat(kept, ctx.like("add", _others(ctx, corrected), first), 2)


def _modalities(ctx: Context, current: Tensor) -> Tensor:
    routed = ctx.like("scale", ctx.norm(current, "altup_router_norm"))
    return ctx.unary(ctx.linear("altup_router", routed, _STREAMS))


def _predicted(ctx: Context, streams: Tensor) -> Tensor:
    """Return the streams as each predicts the others."""
    shares = _modalities(ctx, _stream(ctx, streams))
    shares = ctx.linear("altup_predict_coef", shares, _STREAMS * _STREAMS)
    shares = ctx.reshape(shares, _STREAMS, _STREAMS, ctx.tokens)
    turned = ctx.cont(ctx.permute(streams, 1, 2, 0, 3))
    mixed = ctx.cont(ctx.permute(ctx.matmul(turned, shares), 0, 2, 1, 3))
    return ctx.like("add", mixed, streams)


def _corrected(ctx: Context, predicted: Tensor, current: Tensor) -> Tensor:
    """Return the streams with what the active one turned out to be."""
    shares = _modalities(ctx, current)
    change = ctx.like("sub", current, _stream(ctx, predicted))
    shares = ctx.like("scale", ctx.linear("altup_correct_coef", shares, _STREAMS))
    shares = ctx.cont(ctx.transpose(shares), 1, ctx.tokens, _STREAMS)
    changes = ctx.repeat(change, ctx.hidden, ctx.tokens, _STREAMS, 1)
    return ctx.like("add", ctx.like("mul", changes, shares), predicted)


def _attended(ctx: Context, block: Block, normed: Tensor, *, shape: Attention, cells: Cells, source: int) -> Tensor:
    query = ctx.heads(ctx.linear("attn_q", normed, shape.heads * shape.key), shape.key, shape.heads)
    query = ctx.rope(ctx.norm(query, "attn_q_norm"))
    if isinstance(block.mixers[0], Shared):
        attended = ctx.reread(cells, shape, query, source=source)
    else:
        key = ctx.heads(ctx.linear("attn_k", normed, shape.kv_heads * shape.key), shape.key, shape.kv_heads)
        value = ctx.heads(ctx.linear("attn_v", normed, shape.kv_heads * shape.value), shape.value, shape.kv_heads)
        key = ctx.rope(ctx.norm(key, "attn_k_norm"))
        attended = ctx.cached(cells, shape, query, key, ctx.like("rms_norm", value))
    return ctx.linear("attn_output", attended, ctx.hidden)


def _mlp(ctx: Context, current: Tensor, width: int) -> Tensor:
    up, gate = ctx.linear("ffn_up", current, width), ctx.linear("ffn_gate", current, width)
    if ctx.layer < SPARSE_LAYERS:
        gate = _sparse(ctx, gate)
    return ctx.linear("ffn_down", ctx.like("mul", up, ctx.unary(gate)), ctx.hidden)


def _sparse(ctx: Context, gate: Tensor) -> Tensor:
    """Return a gate of which all below a quantile is cut off."""
    mean = Tensor("mean", F32, (1, *gate.ne[1:]), (gate,))
    spread = ctx.sum_rows(ctx.like("sqr", ctx.like("sub", gate, mean)))
    spread = ctx.like("sqrt", ctx.like("scale", spread))
    cutoff = ctx.like("add", mean, ctx.like("scale", spread))
    return ctx.unary(ctx.like("sub", gate, cutoff))
