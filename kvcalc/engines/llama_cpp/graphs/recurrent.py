"""Recurrent layers: Mamba, Mamba-2, the gated delta net and short convolutions.

Source: llama.cpp commit 0c1e57098bba, ``src/models/mamba-base.cpp``, ``delta-net-base.cpp``, ``qwen35.cpp`` and
``lfm2.cpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass
from kvcalc.engines.llama_cpp.graphs.tensors import F32, I32, Tensor

if TYPE_CHECKING:
    from kvcalc.core.model import State
    from kvcalc.engines.llama_cpp.graphs.context import Context
    from kvcalc.engines.llama_cpp.graphs.shapes import Attention, Cells

__all__ = ["Recurrence", "gated_attention", "recurrent"]


@dataclass(slots=True)
class Recurrence:
    """The states of the context's recurrent layers.

    Args:
        ctx: the graph.
        slots: rows of states: one a sequence, times the copies kept.
        normed: whether Mamba norms its step, input and output vectors (Jamba, Falcon-Mamba).
        scaled: whether these norms have weights (Jamba).
        joint: whether a gated delta net projects decay and step together, and repeats its keys (Qwen3-Next).
        inner_norm: whether Mamba-2 norms what leaves it.
    """

    ctx: Context
    slots: int
    normed: bool = False
    scaled: bool = False
    joint: bool = False
    inner_norm: bool = True
    places: tuple[Tensor, Tensor] | None = None

    @property
    def copies(self) -> tuple[Tensor, Tensor]:
        """Places of the states that are read, and of those that only move."""
        if self.places is None:
            ctx, sequences = self.ctx, self.ctx.batch.sequences
            places = ctx.given(I32, self.slots)
            self.places = (ctx.view(places, (sequences,)), ctx.view(places, (self.slots - sequences,)))
        return self.places

    def convolution(self, state: Tensor, channels: int, kernel: int) -> Tensor:
        """Return the columns that the convolution kept."""
        kept = self.ctx.states(state, self.copies, self.ctx.rows)
        return self.ctx.reshape(kept, kernel - 1, channels, self.ctx.batch.sequences)


def recurrent(state: State, memory: Recurrence, current: Tensor) -> Tensor:
    """Return the output of a recurrent mixer."""
    if state.variant == "mamba":
        return _mamba(state, memory, current)
    if state.variant == "mamba2":
        return _mamba2(state, memory, current)
    if state.variant == "short_conv":
        return _short_convolution(state, memory, current)
    return _gated_delta(state, memory, current)


def _convolved(memory: Recurrence, inputs: Tensor, channels: int, kernel: int, *, bias: bool) -> Tensor:
    """Return a causal convolution over kept and new columns; the last columns are stored."""
    ctx = memory.ctx
    sequences, each = ctx.batch.sequences, ctx.tokens // ctx.batch.sequences
    columns = _columns(memory, inputs, channels, kernel)
    weight = ctx.weight("ssm_conv1d", kernel, channels)
    result = Tensor("ssm_conv", F32, (channels, each, sequences, 1), (columns, weight))
    if bias:
        result = ctx.like("add", result, ctx.weight("ssm_conv1d.bias", channels))
    return ctx.unary(result)


def _mamba(state: State, memory: Recurrence, current: Tensor) -> Tensor:
    ctx = memory.ctx
    sequences, each = ctx.batch.sequences, ctx.tokens // ctx.batch.sequences
    inner, size = state.conv_channels, state.key_dim
    rank = (state.matrix_parameters - 3 * ctx.hidden * inner - 2 * inner * size) // (2 * inner)
    current = ctx.reshape(current, ctx.hidden, each, sequences)
    both = ctx.linear("ssm_in", current, 2 * inner)
    x, z = (ctx.view(both, (inner, each, sequences), both.nb) for _ in range(2))
    x = _convolved(memory, x, inner, state.conv_kernel, bias=True)
    parts = ctx.linear("ssm_x", x, rank + 2 * size)
    step = ctx.view(parts, (rank, each, sequences), parts.nb)
    strides = (4, 4 * size, parts.nb[1], parts.nb[2])
    entering, leaving = (ctx.view(parts, (size, 1, each, sequences), strides) for _ in range(2))
    if memory.normed:
        step, entering, leaving = (
            ctx.norm(part, f"ssm_{name}_norm" if memory.scaled else "")
            for name, part in (("dt", step), ("b", entering), ("c", leaving))
        )
    else:
        step = ctx.cont(step)
    step = ctx.like("add", ctx.linear("ssm_dt", step, inner), ctx.weight("ssm_dt.bias", inner))
    heads = ctx.reshape(x, 1, inner, each, sequences)
    decay = ctx.weight("ssm_a", size, inner)
    scanned = _scan(memory, (size, 1, inner), (heads, step, decay, entering, leaving))
    y = ctx.view(scanned, (inner, each, sequences), (4, heads.nb[2], heads.nb[3]))
    y = ctx.like("add", y, ctx.like("mul", x, ctx.weight("ssm_d", inner)))
    y = ctx.gated(ctx.cont(z), y)
    return ctx.reshape(ctx.linear("ssm_out", y, ctx.hidden), ctx.hidden, ctx.tokens)


def _scan(memory: Recurrence, shape: tuple[int, int, int], parts: tuple[Tensor, ...]) -> Tensor:
    """Return outputs and new states of a selective scan in one tensor; the states are stored."""
    ctx, sequences = memory.ctx, memory.ctx.batch.sequences
    size = shape[0] * shape[1] * shape[2]
    stored = ctx.stored(F32, size, memory.slots)
    heads, step, decay, entering, leaving = parts

    def scan(states: Tensor, places: Tensor) -> Tensor:
        rows = ctx.reshape(states, *shape, memory.slots)
        elements = heads.elements + size * places.ne[0]
        sources = (rows, heads, step, decay, entering, leaving, places)
        return Tensor("ssm_scan", F32, (elements, 1, 1, 1), sources)

    scanned = ctx.states(stored, memory.copies, scan)
    new = ctx.view(scanned, (size * sequences,))
    ctx.expand(ctx.copy(new, ctx.view(stored, (size * sequences,))))
    return scanned


def _mamba2(state: State, memory: Recurrence, current: Tensor) -> Tensor:
    ctx = memory.ctx
    sequences, each = ctx.batch.sequences, ctx.tokens // ctx.batch.sequences
    heads, width, size, groups = state.heads, state.value_dim, state.key_dim, state.groups
    inner, channels = heads * width, state.conv_channels
    whole = ctx.linear("ssm_in", current, inner + channels + heads)
    whole = ctx.reshape(whole, whole.ne[0], each, sequences)
    row, plane = whole.nb[1], whole.nb[2]
    z = ctx.view(whole, (width, heads, each, sequences), (4, 4 * width, row, plane))
    mixed = ctx.view(whole, (channels, each, sequences), (4, row, plane))
    step = ctx.view(whole, (heads, each, sequences), (4, row, plane))
    mixed = _convolved(memory, mixed, channels, state.conv_kernel, bias=True)
    row, plane = mixed.nb[1], mixed.nb[2]
    x = ctx.view(mixed, (width, heads, each, sequences), (4, 4 * width, row, plane))
    entering, leaving = (ctx.view(mixed, (size, groups, each, sequences), (4, 4 * size, row, plane)) for _ in range(2))
    step = ctx.like("add", ctx.cont(step), ctx.weight("ssm_dt.bias", heads))
    scanned = _scan(memory, (size, width, heads), (x, step, ctx.weight("ssm_a", 1, heads), entering, leaving))
    y = ctx.view(scanned, (width, heads, each, sequences), (4, 4 * width, 4 * inner, 4 * inner * each))
    y = ctx.like("add", y, ctx.like("mul", x, ctx.weight("ssm_d", 1, heads)))
    y = ctx.gated(ctx.cont(z), y)
    if memory.inner_norm:
        y = ctx.norm(ctx.reshape(y, inner // groups, groups, each, sequences), "ssm_norm")
    return ctx.linear("ssm_out", ctx.reshape(y, inner, ctx.tokens), ctx.hidden)


def _short_convolution(state: State, memory: Recurrence, current: Tensor) -> Tensor:
    ctx = memory.ctx
    sequences, each = ctx.batch.sequences, ctx.tokens // ctx.batch.sequences
    channels, kernel = state.conv_channels, state.conv_kernel
    current = ctx.reshape(current, ctx.hidden, each, sequences)
    whole = ctx.linear("shortconv.in_proj", current, 3 * channels)
    before, after, x = (ctx.view(whole, (channels, each, sequences), whole.nb) for _ in range(3))
    columns = _columns(memory, ctx.like("mul", before, x), channels, kernel)
    weight = ctx.weight("shortconv.conv", kernel, channels)
    convolved = Tensor("ssm_conv", F32, (channels, each, sequences, 1), (columns, weight))
    result = ctx.linear("shortconv.out_proj", ctx.like("mul", after, convolved), ctx.hidden)
    return ctx.reshape(result, ctx.hidden, ctx.tokens)


def _gated_delta(state: State, memory: Recurrence, current: Tensor) -> Tensor:
    """Return a gated delta net's output (Qwen3.5, Qwen3-Next)."""
    ctx = memory.ctx
    sequences, each = ctx.batch.sequences, ctx.tokens // ctx.batch.sequences
    heads, width, channels = state.heads, state.value_dim, state.conv_channels
    inner = heads * width
    mixed = ctx.reshape(ctx.linear("attn_qkv", current, channels), channels, each, sequences)
    z = ctx.linear("attn_gate", current, inner)
    gate, beta = _decay(state, memory, current)
    columns = _columns(memory, mixed, channels, state.conv_kernel)
    size = width * width * heads
    stored = ctx.stored(F32, size, memory.slots)
    states = ctx.reshape(ctx.states(stored, memory.copies, ctx.rows), width, width, heads, sequences)
    query, key, value = _convolved_heads(state, memory, columns)
    shape = (inner, ctx.tokens + width * sequences, 1, 1)
    passed = Tensor("gated_delta_net", F32, shape, (query, key, value, gate, beta, states))
    output = ctx.view(passed, (width, heads, each, sequences))
    new = ctx.view(passed, (width, width, heads, sequences))
    ctx.expand(ctx.copy(new, ctx.view(stored, (size, sequences), (4, stored.nb[1]))))
    z = ctx.unary(ctx.reshape(z, width, heads, each, sequences))
    output = ctx.like("mul", ctx.norm(output, "ssm_norm"), z)
    return ctx.reshape(
        ctx.linear("ssm_out", ctx.reshape(output, inner, each, sequences), ctx.hidden), ctx.hidden, ctx.tokens
    )


def _key_heads(state: State) -> int:
    return (state.conv_channels - state.heads * state.value_dim) // (2 * state.key_dim)


def _decay(state: State, memory: Recurrence, current: Tensor) -> tuple[Tensor, Tensor]:
    """Return the decay and the step of each head, projected apart or (Qwen3-Next) together."""
    ctx, heads = memory.ctx, state.heads
    sequences, each = ctx.batch.sequences, ctx.tokens // ctx.batch.sequences
    if memory.joint:
        keys = _key_heads(state)
        both = ctx.reshape(ctx.linear("ssm_ba", current, 2 * heads), 2 * heads // keys, keys, each, sequences)
        beta, alpha = (ctx.view(both, (heads // keys, keys, each, sequences), both.nb) for _ in range(2))
        beta = ctx.reshape(ctx.unary(ctx.cont(beta)), 1, heads, each, sequences)
        alpha = ctx.cont(alpha, heads, each, sequences)
    else:
        beta = ctx.unary(ctx.reshape(ctx.linear("ssm_beta", current, heads), 1, heads, each, sequences))
        alpha = ctx.reshape(ctx.linear("ssm_alpha", current, heads), heads, each, sequences)
    alpha = ctx.unary(ctx.like("add", alpha, ctx.weight("ssm_dt.bias", heads)))
    return ctx.reshape(ctx.like("mul", alpha, ctx.weight("ssm_a", heads)), 1, heads, each, sequences), beta


def _convolved_heads(state: State, memory: Recurrence, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values after the convolution; keys are repeated for each head where these are joint."""
    ctx, channels = memory.ctx, state.conv_channels
    sequences, each = ctx.batch.sequences, ctx.tokens // ctx.batch.sequences
    weight = ctx.weight("ssm_conv1d", state.conv_kernel, channels)
    convolved = ctx.unary(Tensor("ssm_conv", F32, (channels, each, sequences, 1), (columns, weight)))
    row, plane = 4 * channels, 4 * channels * each
    keys, heads, width = _key_heads(state), state.heads, state.key_dim
    parts = [ctx.view(convolved, (width, keys, each, sequences), (4, 4 * width, row, plane)) for _ in range(2)]
    value = ctx.view(convolved, (state.value_dim, heads, each, sequences), (4, 4 * state.value_dim, row, plane))
    query, key = (ctx.like("scale", ctx.like("rms_norm", part)) for part in parts)
    if memory.joint and keys != heads:
        flat = [ctx.reshape(part, width, 1, keys, ctx.tokens) for part in (query, key)]
        wide = [ctx.repeat(part, width, heads // keys, keys, ctx.tokens) for part in flat]
        query, key = (ctx.reshape(part, width, heads, each, sequences) for part in wide)
    return query, key, value


def _columns(memory: Recurrence, mixed: Tensor, channels: int, kernel: int) -> Tensor:
    """Return kept and new columns of a convolution; the last ones are stored."""
    ctx, sequences = memory.ctx, memory.ctx.batch.sequences
    stored = ctx.stored(F32, (kernel - 1) * channels, memory.slots)
    columns = ctx.concat(memory.convolution(stored, channels, kernel), ctx.transpose(mixed), 0)
    last = ctx.view(columns, (kernel - 1, channels, sequences), columns.nb)
    ctx.expand(ctx.copy(last, ctx.view(stored, ((kernel - 1) * channels, sequences), (4, stored.nb[1]))))
    return columns


def gated_attention(ctx: Context, current: Tensor, *, shape: Attention, cells: Cells, per_token: int) -> Tensor:
    """Return attention whose output is gated, the gate projected with the queries (Qwen3.5)."""
    width, heads = shape.key, shape.heads
    whole = ctx.linear("attn_q", current, 2 * width * heads)
    key = ctx.linear("attn_k", current, width * shape.kv_heads)
    value = ctx.heads(ctx.linear("attn_v", current, shape.value * shape.kv_heads), shape.value, shape.kv_heads)
    strides = (4, 8 * width, 8 * width * heads)
    query = ctx.norm(ctx.view(whole, (width, heads, ctx.tokens), strides), "attn_q_norm")
    key = ctx.norm(ctx.heads(key, width, shape.kv_heads), "attn_k_norm")
    gate = ctx.cont(ctx.view(whole, (width, heads, ctx.tokens), strides), width * heads, ctx.tokens)
    query, key = (ctx.rope(part, per_token=per_token) for part in (query, key))
    attended = ctx.cached(cells, shape, query, key, value)
    return ctx.linear("attn_output", ctx.like("mul", attended, ctx.unary(gate)), ctx.hidden)
