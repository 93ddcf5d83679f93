"""Gemma 4: heads that differ with the window, caches shared by layers, inputs of each layer, a mixture beside the MLP.

Source: llama.cpp commit 0c1e57098bba, ``src/models/gemma4.cpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Full, Mixture, Shared
from kvcalc.engines.llama_cpp.graphs.families import Routing
from kvcalc.engines.llama_cpp.graphs.layers import chosen_experts, summed_experts
from kvcalc.engines.llama_cpp.graphs.tensors import F32, I32, Tensor

if TYPE_CHECKING:
    from kvcalc.core.model import Block
    from kvcalc.engines.llama_cpp.graphs.context import Context
    from kvcalc.engines.llama_cpp.graphs.shapes import Attention, Cells

__all__ = ["gemma4_layer", "per_layer_inputs"]


def per_layer_inputs(ctx: Context, current: Tensor, *, rows: int, width: int, layers: int) -> Tensor:
    """Return the inputs of all layers: looked up by token, and projected from the embedded tokens.

    Args:
        ctx: the graph.
        current: the embedded tokens.
        rows: rows of the table.
        width: elements for each layer.
        layers: layers.
    """
    table = ctx.weight("per_layer_token_embd", width * layers, rows, outside=True)
    looked_up = ctx.reshape(ctx.rows(table, ctx.given(I32, ctx.tokens)), width, layers, ctx.tokens)
    looked_up = ctx.expand(ctx.like("scale", looked_up))
    projected = ctx.matmul(ctx.weight("per_layer_model_proj", ctx.hidden, width * layers, outside=True), current)
    projected = ctx.reshape(ctx.like("scale", projected), width, layers, ctx.tokens)
    projected = ctx.like("rms_norm", projected)
    projected = ctx.like("mul", projected, ctx.weight("per_layer_proj_norm", width, outside=True))
    both = ctx.like("scale", ctx.like("add", projected, looked_up))
    return ctx.cont(ctx.permute(both, 0, 2, 1, 3))


def gemma4_layer(
    ctx: Context,
    block: Block,
    current: Tensor,
    *,
    shape: Attention,
    cells: Cells,
    factors: int,
    source: int,
    inputs: Tensor | None,
) -> Tensor:
    """Return a layer's output.

    Args:
        ctx: the graph.
        block: the layer.
        current: its input.
        shape: its heads.
        cells: its cache, or that of the layer whose keys and values it reads.
        factors: rotary factors that are a weight of the layer.
        source: the layer whose keys and values one without its own reads.
        inputs: further inputs of all layers, where there are some.
    """
    attended = _attended(ctx, block, current, shape=shape, cells=cells, factors=factors, source=source)
    middle = ctx.like("add", ctx.norm(attended, "post_attention_norm"), current)
    if isinstance(block.mlp, Mixture):
        inner = _both(ctx, block.mlp, middle)
    else:
        inner = ctx.ffn(ctx.norm(middle, "ffn_norm"), getattr(block.mlp, "width", 0), "gated")
    current = ctx.like("add", ctx.norm(inner, "post_ffw_norm"), middle)
    if inputs is not None:
        own = ctx.view(inputs, (inputs.ne[0], inputs.ne[1]), (4, inputs.nb[1]))
        gated = ctx.like("mul", ctx.unary(ctx.linear("inp_gate", current, inputs.ne[0])), own)
        current = ctx.like("add", current, ctx.norm(ctx.linear("proj", gated, ctx.hidden), "post_norm"))
    return ctx.like("mul", current, ctx.weight("layer_output_scale", 1))


def _attended(
    ctx: Context, block: Block, current: Tensor, *, shape: Attention, cells: Cells, factors: int, source: int
) -> Tensor:
    mixer = block.mixers[0]
    normed = ctx.norm(current, "attn_norm")
    query = ctx.heads(ctx.linear("attn_q", normed, shape.heads * shape.key), shape.key, shape.heads)
    query = ctx.rope(ctx.norm(query, "attn_q_norm"), factors=factors)
    if isinstance(mixer, Shared):
        attended = ctx.reread(cells, shape, query, source=source)
    else:
        key = ctx.linear("attn_k", normed, shape.kv_heads * shape.key)
        from_key = isinstance(mixer, Full) and mixer.value_from_key
        value = key if from_key else ctx.linear("attn_v", normed, shape.kv_heads * shape.value)
        key, value = (ctx.heads(part, shape.key, shape.kv_heads) for part in (key, value))
        key = ctx.rope(ctx.norm(key, "attn_k_norm"), factors=factors)
        attended = ctx.cached(cells, shape, query, key, ctx.like("rms_norm", value))
    return ctx.linear("attn_output", attended, ctx.hidden)


def _both(ctx: Context, mixture: Mixture, middle: Tensor) -> Tensor:
    """Return the MLP and the mixture, each normed on its way in and out."""
    dense = ctx.ffn(ctx.norm(middle, "ffn_norm"), mixture.shared_width, "gated")
    dense = ctx.norm(dense, "post_ffw_norm_1")
    inputs = ctx.norm(middle, "pre_ffw_norm_2")
    scores = ctx.like("scale", ctx.like("rms_norm", middle))
    scores = ctx.like("mul", scores, ctx.weight("ffn_gate_inp.scale", ctx.hidden))
    chosen, weights = chosen_experts(ctx, Routing(), scores, mixture)
    hidden, tokens, width = ctx.hidden, middle.ne[1], mixture.width
    fed = ctx.reshape(inputs, hidden, 1, tokens)
    up = ctx.expert_matmul(ctx.weight("ffn_gate_up_exps", hidden, 2 * width, mixture.experts), fed, chosen)
    gate, up = (ctx.view(up, (width, up.ne[1], up.ne[2]), (4, up.nb[1], up.nb[2])) for _ in range(2))
    inner = Tensor("glu", F32, (width, gate.ne[1], gate.ne[2], 1), (gate, up))
    down = ctx.weight("ffn_down_exps", width, hidden, mixture.experts)
    outputs = ctx.like("mul", _scaled(ctx, ctx.expert_matmul(down, inner, chosen), mixture, chosen), weights)
    routed = ctx.norm(summed_experts(ctx, outputs, mixture.experts_per_token), "post_ffw_norm_2")
    return ctx.like("add", dense, routed)


def _scaled(ctx: Context, outputs: Tensor, mixture: Mixture, chosen: Tensor) -> Tensor:
    """Return the experts' outputs, each times a number of the expert's own."""
    scale = ctx.reshape(ctx.weight("ffn_down_exps.scale", mixture.experts), 1, mixture.experts)
    each = ctx.repeat(scale, 1, mixture.experts, outputs.ne[2], 1)
    return ctx.like("mul", outputs, ctx.rows(each, chosen))
