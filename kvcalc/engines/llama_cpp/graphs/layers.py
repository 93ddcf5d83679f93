"""Layers of attention and an MLP, and mixtures of experts, as llama.cpp's graphs have them.

Source: llama.cpp commit 0c1e57098bba, ``src/models`` and ``llm_graph_context::build_qkv``, ``build_moe_ffn``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Gated, Mixture

if TYPE_CHECKING:
    from kvcalc.core.model import Mlp
    from kvcalc.engines.llama_cpp.graphs.context import Context
    from kvcalc.engines.llama_cpp.graphs.families import Family, Routing
    from kvcalc.engines.llama_cpp.graphs.shapes import Attention, Cells
    from kvcalc.engines.llama_cpp.graphs.tensors import Tensor

__all__ = [
    "attend",
    "chosen_experts",
    "deepstacked",
    "experts",
    "layer",
    "mixture_of",
    "mlp",
    "picked",
    "summed_experts",
]

# Experts of the models that choose among groups of them.
_GROUPED_EXPERTS = 256


def layer(
    ctx: Context,
    family: Family,
    current: Tensor,
    *,
    shape: Attention,
    cells: Cells,
    mlp_: Mlp | None,
    rotated: bool,
    factors: int,
    last: bool,
) -> Tensor:
    """Return a layer's output.

    Args:
        ctx: the graph.
        family: the architecture.
        current: the layer's input.
        shape: its heads.
        cells: its cache.
        mlp_: its MLP.
        rotated: whether its queries and keys are rotated.
        factors: rotary factors that are a weight of the layer.
        last: whether only tokens with logits go on.
    """
    residual = current
    if family.pre_norm:
        current = ctx.norm(current, "" if family.bare_norm else "attn_norm", kind=family.norm, bias=family.norm_bias)
    normed = current
    if family.parallel == "falcon" and shape.kv_heads > 1:
        current = ctx.norm(residual, "attn_norm_2", kind=family.norm, bias=True)
    current = attend(ctx, family, current, shape=shape, cells=cells, rotated=rotated, factors=factors)
    if last:
        current, residual = picked(ctx, current), picked(ctx, residual)
        normed = picked(ctx, normed) if family.parallel else normed
    if family.parallel == "neox":
        normed = ctx.norm(residual, "ffn_norm", kind=family.norm, bias=True)
    if family.parallel:
        return _parallel(ctx, family, current, residual, normed, mlp_)
    if family.post_norm:
        current = ctx.norm(current, "post_attention_norm", kind=family.norm)
    return mlp(ctx, family, current, residual, mlp_)


def picked(ctx: Context, current: Tensor) -> Tensor:
    """Return the tokens with logits."""
    return ctx.rows(current, ctx.outputs)


def _parallel(
    ctx: Context, family: Family, attended: Tensor, residual: Tensor, normed: Tensor, mlp_: Mlp | None
) -> Tensor:
    """Return the sum of a layer's input, its attention and its MLP, which reads the same norm as the attention."""
    width = getattr(mlp_, "width", 0)
    current = ctx.ffn(normed, width, family.ffn, bias=family.ffn_bias)
    if family.parallel in ("cohere", "neox"):
        return ctx.like("add", ctx.like("add", current, residual), attended)
    if family.parallel == "falcon":
        return ctx.like("add", ctx.like("add", current, attended), residual)
    return ctx.like("add", ctx.like("add", attended, current), residual)


def mlp(ctx: Context, family: Family, current: Tensor, residual: Tensor, mlp_: Mlp | None) -> Tensor:
    """Return the residual with attention and MLP added."""
    if family.residual_scale:
        current = ctx.like("scale", current)
    middle = ctx.like("add", *((residual, current) if family.first == "both" else (current, residual)))
    current = middle
    if family.pre_norm:
        current = ctx.norm(current, "" if family.bare_norm else "ffn_norm", kind=family.norm, bias=family.norm_bias)
    if isinstance(mlp_, Mixture):
        current = mixture_of(ctx, family, current, mlp_)
    else:
        kind = "gated" if isinstance(mlp_, Gated) and family.ffn != "fused" else family.ffn
        current = ctx.ffn(current, getattr(mlp_, "width", 0), kind, bias=family.ffn_bias)
    if family.post_ffn_norm:
        current = ctx.norm(current, "post_ffw_norm", kind=family.norm)
    if family.residual_scale:
        current = ctx.like("scale", current)
    return ctx.like("add", *((middle, current) if family.first else (current, middle)))


def attend(
    ctx: Context, family: Family, current: Tensor, *, shape: Attention, cells: Cells, rotated: bool, factors: int
) -> Tensor:
    """Return a layer's attention, projected."""
    query, key, value = _projected(ctx, family, current, shape)
    if family.head_norm:
        query = ctx.norm(query, "attn_q_norm", kind=family.head_norm)
        key = ctx.norm(key, "attn_k_norm", kind=family.head_norm)
    if rotated:
        query = ctx.rope(query, factors=factors, per_token=family.per_token)
        key = ctx.rope(key, factors=factors, per_token=family.per_token)
    if family.turned_norm and rotated:
        query, key = ctx.like("rms_norm", query), ctx.like("rms_norm", key)
    if family.temperature == "all" or (family.temperature and not rotated):
        query = ctx.like("mul", query, ctx.temperature())
    if family.query_scale:
        query = ctx.like("scale", query)
    attended = ctx.cached(cells, shape, query, key, value)
    return ctx.linear("attn_output", attended, ctx.hidden, bias=family.out_bias)


def _projected(ctx: Context, family: Family, current: Tensor, shape: Attention) -> tuple[Tensor, Tensor, Tensor]:
    widths = (shape.heads * shape.key, shape.kv_heads * shape.key, shape.kv_heads * shape.value)
    if family.fused_qkv:
        whole = ctx.linear("attn_qkv", current, sum(widths), bias=family.qkv_bias)
        row = whole.nb[1]
        query = ctx.view(whole, (shape.key, shape.heads, ctx.tokens), (4, 4 * shape.key, row))
        key = ctx.view(whole, (shape.key, shape.kv_heads, ctx.tokens), (4, 4 * shape.key, row))
        value = ctx.view(whole, (shape.value, shape.kv_heads, ctx.tokens), (4, 4 * shape.value, row))
        return query, key, value
    names = ("attn_q", "attn_k", "attn_v")
    query, key, value = (
        ctx.linear(name, current, width, bias=family.qkv_bias) for name, width in zip(names, widths, strict=True)
    )
    if family.flat_norm:
        query, key = ctx.norm(query, "attn_q_norm"), ctx.norm(key, "attn_k_norm")
    return (
        ctx.heads(query, shape.key, shape.heads),
        ctx.heads(key, shape.key, shape.kv_heads),
        ctx.heads(value, shape.value, shape.kv_heads),
    )


def mixture_of(ctx: Context, family: Family, current: Tensor, mixture: Mixture) -> Tensor:
    """Return routed and shared experts together."""
    routing = family.routing
    inner = "gated" if mixture.gated else family.ffn
    routed = experts(ctx, routing, current, mixture, kind=inner)
    if not mixture.shared_width:
        return routed
    if routing.shared_gate == "silu":
        gate = ctx.matmul(ctx.weight("ffn_gate_inp_shexp", ctx.hidden), current)
        gate = ctx.like("div", ctx.unary(gate), gate)
    shared = ctx.ffn(current, mixture.shared_width, inner, suffix="_shexp")
    if routing.shared_gate == "sigmoid":
        gate = ctx.unary(ctx.matmul(ctx.weight("ffn_gate_inp_shexp", ctx.hidden), current))
    if routing.shared_gate:
        shared = ctx.like("mul", shared, gate)
    return ctx.like("add", routed, shared)


def experts(ctx: Context, routing: Routing, current: Tensor, mixture: Mixture, *, kind: str = "gated") -> Tensor:
    """Return the sum of the chosen experts (``build_moe_ffn``).

    Args:
        ctx: the graph.
        routing: the choice of experts.
        current: what the router reads, and the experts unless these work in a width of their own.
        mixture: the experts.
        kind: their kind, as `Context.ffn` has them.
    """
    used, tokens = mixture.experts_per_token, current.ne[1]
    fed = current
    if mixture.inputs:
        fed = ctx.linear("ffn_latent_down", current, mixture.inputs)
    chosen, weights = chosen_experts(ctx, routing, current, mixture)
    width = fed.ne[0]
    fed = ctx.reshape(fed, width, 1, tokens)
    if routing.before:
        fed = ctx.like("mul", ctx.repeat(fed, width, used, tokens, 1), weights)
    outputs = _inside(ctx, fed, chosen, mixture, kind)
    if not routing.before:
        outputs = ctx.like("mul", outputs, weights)
    total = summed_experts(ctx, outputs, used)
    return ctx.linear("ffn_latent_up", total, ctx.hidden) if mixture.inputs else total


def summed_experts(ctx: Context, outputs: Tensor, used: int) -> Tensor:
    """Return the sum of each token's experts."""
    ctx.expand(outputs)
    hidden, tokens = outputs.ne[0], outputs.ne[2]
    parts = [ctx.view(outputs, (hidden, tokens), (4, outputs.nb[2])) for _ in range(used)]
    for part in parts:
        ctx.expand(part)
    total = parts[0]
    for part in parts[1:]:
        total = ctx.expand(ctx.like("add", total, part))
    return ctx.cont(total) if used == 1 else total


def _inside(ctx: Context, current: Tensor, chosen: Tensor, mixture: Mixture, kind: str) -> Tensor:
    hidden, width, count = current.ne[0], mixture.width, mixture.experts

    def product(name: str, inputs: Tensor, outputs: int) -> Tensor:
        result = ctx.expert_matmul(ctx.weight(name, inputs.ne[0], outputs, count), inputs, chosen)
        if mixture.expert_bias:
            result = ctx.like("add_id", result, ctx.weight(f"{name}.bias", outputs, count), chosen)
        return result

    up = product("ffn_up_exps", current, width)
    inner = ctx.gated(product("ffn_gate_exps", current, width), up) if kind == "gated" else ctx.unary(up)
    if kind == "squared":
        inner = ctx.like("sqr", inner)
    return product("ffn_down_exps", inner, hidden)


def chosen_experts(ctx: Context, routing: Routing, current: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor]:
    """Return the places and the weights of each token's experts."""
    count, used, tokens = mixture.experts, mixture.experts_per_token, current.ne[1]
    scores = ctx.matmul(ctx.weight("ffn_gate_inp", ctx.hidden, count), current)
    if routing.router_bias:
        scores = ctx.like("add", scores, ctx.weight("ffn_gate_inp.bias", count))
    shares = scores
    if routing.gate != "chosen":
        shares = ctx.like("soft_max" if routing.gate == "soft_max" else "unary", scores)
    ranked = scores if routing.before else shares
    if routing.corrected:
        ranked = ctx.like("add", shares, ctx.weight("exp_probs_b.bias", count))
    if routing.groups > 1 and count == _GROUPED_EXPERTS:
        ranked = _in_groups(ctx, ranked, routing.groups)
    chosen = ctx.top(ranked, used)
    weights = ctx.rows(ctx.reshape(shares, 1, count, tokens), chosen)
    if routing.gate == "chosen":
        weights = ctx.like("soft_max", ctx.reshape(weights, used, tokens))
        weights = ctx.reshape(weights, 1, used, tokens)
    if routing.normed:
        weights = ctx.reshape(weights, used, tokens)
        total = ctx.like("clamp", ctx.sum_rows(weights))
        weights = ctx.reshape(ctx.like("div", weights, total), 1, used, tokens)
    if routing.scaled:
        weights = ctx.like("scale", weights)
    return chosen, ctx.expand(weights)


def _in_groups(ctx: Context, ranked: Tensor, groups: int) -> Tensor:
    """Return the scores with those outside the best groups masked."""
    count, tokens = ranked.ne[0], ranked.ne[1]
    each = count // groups
    grouped = ctx.reshape(ranked, each, groups, tokens)
    best = ctx.rows(ctx.reshape(grouped, 1, each, groups, tokens), ctx.top(grouped, 2))
    total = ctx.sum_rows(ctx.reshape(best, best.ne[1], best.ne[2], best.ne[3]))
    kept = ctx.top(ctx.reshape(total, total.ne[1], total.ne[2]), groups // 2)
    masked = ctx.store(ctx.like("fill", grouped), ctx.rows(grouped, kept), kept)
    return ctx.reshape(masked, count, tokens)


def deepstacked(ctx: Context, current: Tensor) -> Tensor:
    """Return a layer's output with a further vector of each token's input added (Qwen3-VL)."""
    inputs = ctx.embedded
    if inputs is None:
        return current
    return ctx.like("add", current, ctx.view(inputs, (ctx.hidden, ctx.tokens), (4, inputs.nb[1])))
