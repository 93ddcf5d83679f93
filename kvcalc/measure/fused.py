"""A decode step's small operations as kernels of their own, in Triton: ten a dense layer with its four matrices.

Each is the same function as in `kvcalc.measure.kernels`, which it is held to under Triton's interpreter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from kvcalc.core.units import ceil_div
from kvcalc.measure.kernels import Sdpa

if TYPE_CHECKING:
    from kvcalc.measure.attention import HeadsCache, Pass, Reading

__all__ = ["Fused", "launch"]

_MIN_SQUARE = 1e-6
# Entries that a program reads at once, and the fewest that are worth a program of their own.
_ENTRIES, _MIN_ENTRIES = 64, 256
# Programs that keep a card busy, on one of 132 processors; and the most that one result is put together from.
_PROGRAMS, _MAX_PARTS = 264, 64
_COLUMNS = 2048
# Rows of the smallest product that tensor cores make.
_MIN_ROWS = 16


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Start a kernel; every one goes through here, so that they can be counted."""
    kernel[grid](*arguments, **constants)


@triton.jit
def _add_norm_kernel(hidden, update, weight, normed, width, least_square, BLOCK: tl.constexpr):
    """Add one row of an update to the hidden states in place, and write it scaled to a mean square of one."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    at = row * width + columns
    total = tl.load(hidden + at, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(update + at, mask=inside, other=0.0).to(tl.float32)
    total = total.to(hidden.dtype.element_ty)
    tl.store(hidden + at, total, mask=inside)
    total = total.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(total * total, axis=0) / width + least_square)
    scaled = total * scale * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + at, scaled.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _gated_kernel(projected, inner, width, BLOCK: tl.constexpr):
    """SiLU of a row's first half times its second half."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    start = projected + row * 2 * width + columns
    gate = tl.load(start, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(start + width, mask=inside, other=0.0).to(tl.float32)
    gate = (gate / (1.0 + tl.exp(-gate))).to(inner.dtype.element_ty).to(tl.float32)
    tl.store(inner + row * width + columns, (gate * up).to(inner.dtype.element_ty), mask=inside)


@triton.jit
def _store_kernel(
    queries, keys, values, query_row, key_row, value_row, cos, sin, positions, turned, cached_keys, cached_values,
    tokens, heads, kv_heads, places, width, value_width,
    ROTATES: tl.constexpr, HALF: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Turn one head of one token by its position: a query is written out, a key into the cache; a value is copied."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, token = row // tokens, row % tokens
    slot = tl.load(positions + token) % places
    half = width // 2
    columns = tl.arange(0, HALF)
    inside = columns < half
    if head < heads + kv_heads:
        if head < heads:
            source = queries + row * query_row + head * width
            target = turned + ((sequence * heads + head) * tokens + token) * width
        else:
            source = keys + row * key_row + (head - heads) * width
            target = cached_keys + ((sequence * kv_heads + head - heads) * places + slot) * width
        first = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(source + half + columns, mask=inside, other=0.0).to(tl.float32)
        if ROTATES:
            cosine = tl.load(cos + token * half + columns, mask=inside, other=0.0).to(tl.float32)
            sine = tl.load(sin + token * half + columns, mask=inside, other=0.0).to(tl.float32)
            left = first * cosine - second * sine
            right = second * cosine + first * sine
        else:
            left = first
            right = second
        tl.store(target + columns, left.to(turned.dtype.element_ty), mask=inside)
        tl.store(target + half + columns, right.to(turned.dtype.element_ty), mask=inside)
    else:
        wide = tl.arange(0, VALUES)
        within = wide < value_width
        kv_head = head - heads - kv_heads
        value = tl.load(values + row * value_row + kv_head * value_width + wide, mask=within)
        index = ((sequence * kv_heads + kv_head) * places + slot) * value_width
        tl.store(cached_values + index + wide, value, mask=within)


@triton.jit
def _attend_kernel(
    queries, keys, values, positions, read, tops, sums, scale, tokens, group, places, parts, width, value_width,
    ROWS: tl.constexpr, ENTRIES: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Read one part of the cache of one KV head with all the query heads and tokens that it serves."""
    head, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, columns, wide = tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, VALUES)
    real = rows < group * tokens
    at = head * group * tokens + rows
    query = tl.load(
        queries + at[:, None] * width + columns[None, :], mask=real[:, None] & (columns < width)[None, :], other=0.0
    )
    seen = tl.minimum(tl.load(positions + rows % tokens, mask=real, other=0) + 1, places)
    last = tl.minimum(tl.load(positions + tokens - 1) + 1, places)
    each = tl.cdiv(tl.cdiv(last, parts), ENTRIES) * ENTRIES
    start = part * each
    end = tl.minimum(start + each, last)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sofar = tl.zeros((ROWS, VALUES), tl.float32)
    for first in range(start, end, ENTRIES):
        entries = first + tl.arange(0, ENTRIES)
        there = entries < end
        base = head * places + entries
        key = tl.load(
            keys + base[None, :] * width + columns[:, None], mask=there[None, :] & (columns < width)[:, None], other=0.0
        )
        scores = tl.dot(query, key, input_precision=EXACT) * scale
        scores = tl.where(there[None, :] & (entries[None, :] < seen[:, None]), scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        shares = tl.exp(scores - safe[:, None])
        shrink = tl.exp(top - safe)
        total = total * shrink + tl.sum(shares, axis=1)
        value = tl.load(
            values + base[:, None] * value_width + wide[None, :],
            mask=there[:, None] & (wide < value_width)[None, :],
            other=0.0,
        )
        sofar = sofar * shrink[:, None] + tl.dot(shares.to(value.dtype), value, input_precision=EXACT)
        top = higher
    out = (head * parts + part) * group * tokens + rows
    tl.store(tops + out, top, mask=real)
    tl.store(sums + out, total, mask=real)
    tl.store(
        read + out[:, None] * value_width + wide[None, :], sofar, mask=real[:, None] & (wide < value_width)[None, :]
    )


@triton.jit
def _join_kernel(
    read, tops, sums, joined, tokens, heads, group, parts, value_width, PARTS: tl.constexpr, VALUES: tl.constexpr
):
    """Put one query head's parts together, each weighed by its share of the softmax."""
    row = tl.program_id(0).to(tl.int64)
    sequence, head, token = row // (heads * tokens), row // tokens % heads, row % tokens
    kv_head, within = sequence * (heads // group) + head // group, head % group * tokens + token
    number, wide = tl.arange(0, PARTS), tl.arange(0, VALUES)
    real = number < parts
    at = (kv_head * parts + number) * group * tokens + within
    top = tl.load(tops + at, mask=real, other=float("-inf"))
    weights = tl.exp(top - tl.max(top, axis=0))
    total = tl.sum(weights * tl.load(sums + at, mask=real, other=0.0), axis=0)
    pieces = tl.load(
        read + at[:, None] * value_width + wide[None, :], mask=real[:, None] & (wide < value_width)[None, :], other=0.0
    )
    result = tl.sum(pieces * weights[:, None], axis=0) / total
    target = joined + ((sequence * tokens + token) * heads + head) * value_width + wide
    tl.store(target, result.to(joined.dtype.element_ty), mask=wide < value_width)


class Fused(Sdpa):
    """Each of the operations one kernel, attention two: its parts, and what puts them together.

    Norms with biases or of pieces, sinks and chunks are done as in the plain variant.
    """

    name = "fused"

    def add_norm(self, hidden: Any, update: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
        """Add an update to the hidden states, in place, and normalise them: one kernel."""
        width = hidden.shape[-1]
        if weight is None or bias is not None or weight.shape[0] != width:
            return super().add_norm(hidden, update, weight, bias)
        hidden, update = hidden.contiguous(), update.contiguous()
        normed = torch.empty_like(hidden)
        rows, block = hidden.numel() // width, triton.next_power_of_2(width)
        launch(_add_norm_kernel, (rows,), hidden, update, weight, normed, width, _MIN_SQUARE, BLOCK=block)
        return hidden, normed

    def gated(self, projected: Any) -> Any:
        """Let one half of the vectors gate the other: one kernel."""
        projected = projected.contiguous()
        width = projected.shape[-1] // 2
        inner = projected.new_empty(*projected.shape[:-1], width)
        rows = projected.numel() // (2 * width)
        launch(_gated_kernel, (rows, ceil_div(width, _COLUMNS)), projected, inner, width, BLOCK=_COLUMNS)
        return inner

    def store(self, queries: Any, keys: Any, values: Any, cache: HeadsCache, run: Pass) -> Any:
        """Turn queries and keys and write keys and values into the cache: one kernel."""
        sequences, tokens, _ = queries.shape
        _, kv_heads, places, width = cache.keys.shape
        heads, value_width = queries.shape[-1] // width, cache.values.shape[-1]
        turned = queries.new_empty(sequences, heads, tokens, width)
        cos, sin = run.angles(width, queries.dtype) if run.rotates else (turned, turned)
        launch(
            _store_kernel, (sequences * tokens, heads + 2 * kv_heads),
            queries, keys, values, queries.stride(1), keys.stride(1), values.stride(1), cos, sin, run.positions,
            turned, cache.keys, cache.values, tokens, heads, kv_heads, places, width, value_width,
            ROTATES=run.rotates, HALF=triton.next_power_of_2(width // 2), VALUES=triton.next_power_of_2(value_width),
        )  # fmt: skip
        return turned

    def read(self, queries: Any, cache: HeadsCache, run: Pass, reading: Reading) -> Any:
        """Attend to the entries of a cache up to the new tokens' positions, which are read on the device."""
        if reading.sinks is not None or reading.chunk is not None:
            return super().read(queries, cache, run, reading)
        sequences, heads, tokens, width = queries.shape
        _, kv_heads, places, _ = cache.keys.shape
        group, value_width = heads // kv_heads, cache.values.shape[-1]
        parts = min(_MAX_PARTS, ceil_div(_PROGRAMS, sequences * kv_heads), ceil_div(places, _MIN_ENTRIES))
        read = torch.empty(
            sequences * kv_heads, parts, group * tokens, value_width, dtype=torch.float32, device=queries.device
        )
        tops, sums = (torch.empty(read.shape[:-1], dtype=torch.float32, device=queries.device) for _ in range(2))
        wide = triton.next_power_of_2(value_width)
        launch(
            _attend_kernel, (sequences * kv_heads, parts),
            queries, cache.keys, cache.values, run.positions, read, tops, sums, reading.scale,
            tokens, group, places, parts, width, value_width,
            ROWS=max(_MIN_ROWS, triton.next_power_of_2(group * tokens)), ENTRIES=_ENTRIES,
            WIDTH=max(_MIN_ROWS, triton.next_power_of_2(width)), VALUES=max(_MIN_ROWS, wide), EXACT="ieee",
        )  # fmt: skip
        joined = queries.new_empty(sequences, tokens, heads * value_width)
        launch(
            _join_kernel, (sequences * heads * tokens,), read, tops, sums, joined, tokens, heads, group, parts,
            value_width, PARTS=triton.next_power_of_2(parts), VALUES=wide,
        )  # fmt: skip
        return joined
