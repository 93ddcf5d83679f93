"""Attention over a preallocated cache: grouped heads, over everything, a window or a chunk; rotary positions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kvcalc.core.model import Chunked, Sliding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.model import Attention
    from kvcalc.measure.library import Device
    from kvcalc.measure.weights import Linear, WeightMaker

__all__ = ["GroupedAttention", "HeadsCache", "Pass", "attend", "causal_mask", "normalised"]

_ROTARY_BASE = 10_000.0
_LEAST_SQUARE = 1e-6


@dataclass(slots=True, kw_only=True)
class Pass:
    """One forward pass: where its new tokens stand, and what it notes down.

    Args:
        start: position of the first new token: tokens in the cache.
        tokens: new tokens of each sequence.
        device: where it runs.
        rotates: whether positions are rotary (else they were added to the embeddings).
        touched: for each mixture, the experts that were used; filled only where the list is given.
        projected: tokens whose keys and values were projected, over all layers.
    """

    start: int
    tokens: int
    device: Device
    rotates: bool = True
    touched: list[int] | None = None
    projected: int = 0
    _angles: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Tokens in the cache after the pass."""
        return self.start + self.tokens

    def rotate(self, heads: Any) -> Any:
        """Turn vectors (… x tokens x width) by their positions (rotary embedding, halves paired)."""
        if not self.rotates:
            return heads
        width = heads.shape[-1]
        if width not in self._angles:
            exponents = torch.arange(0, width, 2, device=heads.device, dtype=torch.float32) / width
            positions = torch.arange(self.start, self.end, device=heads.device, dtype=torch.float32)
            angles = positions[:, None] * _ROTARY_BASE**-exponents
            self._angles[width] = (angles.cos().to(heads.dtype), angles.sin().to(heads.dtype))
        cos, sin = self._angles[width]
        first, second = heads.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def normalised(vectors: Any, weight: Any, bias: Any = None) -> Any:
    """Return vectors scaled to a mean square of one (RMSNorm), or with a bias centred first (LayerNorm).

    A weight shorter than the vectors is for pieces of them, each normalised on its own.
    """
    if weight is None:
        return torch.nn.functional.layer_norm(vectors, vectors.shape[-1:])
    if bias is not None:
        return torch.nn.functional.layer_norm(vectors, vectors.shape[-1:], weight, bias, _LEAST_SQUARE)
    width = weight.shape[0]
    if width == vectors.shape[-1]:
        return torch.nn.functional.rms_norm(vectors, (width,), weight, _LEAST_SQUARE)
    pieces = vectors.unflatten(-1, (-1, width))
    return torch.nn.functional.rms_norm(pieces, (width,), weight, _LEAST_SQUARE).flatten(-2)


def attend(queries: Any, keys: Any, values: Any, mask: Any = None, *, scale: float, sinks: Any = None) -> Any:
    """Return what queries read from a cache, the query heads of one KV head taken as rows of one matrix.

    The cache is so read once for each KV head, not once for each query head.

    Args:
        queries: sequences x heads x tokens x width.
        keys: sequences x KV heads x entries x width.
        values: sequences x KV heads x entries x value width.
        mask: tokens x entries, true where a token sees an entry; none where all do.
        scale: factor of the scores.
        sinks: for each head a score that takes part in the softmax and reads nothing, where a model has them.

    Returns:
        sequences x tokens x (heads * value width).
    """
    sequences, heads, tokens, width = queries.shape
    kv_heads = keys.shape[1]
    rows = (queries * scale).reshape(sequences, kv_heads, heads // kv_heads * tokens, width)
    scores = torch.matmul(rows, keys.transpose(-1, -2)).float()
    if mask is not None:
        apart = scores.unflatten(2, (-1, tokens))
        scores = apart.masked_fill(~mask, -math.inf).flatten(2, 3)
    if sinks is not None:
        beside = sinks.float().view(1, kv_heads, -1, 1).repeat_interleave(tokens, dim=2)
        scores = torch.cat((scores, beside.expand(sequences, -1, -1, -1)), dim=-1)
    shares = torch.softmax(scores, dim=-1)[..., : keys.shape[2]]
    read = torch.matmul(shares.to(values.dtype), values)
    return read.reshape(sequences, heads, tokens, -1).transpose(1, 2).flatten(2)


def causal_mask(queries: Any, entries: Any, *, window: int | None = None, chunk: int | None = None) -> Any:
    """Return which entries each query sees, from their positions: none later, none outside its window or chunk."""
    seen = entries[None, :] <= queries[:, None]
    if window is not None:
        seen &= entries[None, :] > queries[:, None] - window
    if chunk is not None:
        seen &= entries[None, :] // chunk == queries[:, None] // chunk
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsCache:
    """Keys and values of one layer: sequences x KV heads x places x width.

    A window's or a chunk's places are used in turn: the token at position p stands in place p modulo their number.
    """

    keys: Any
    values: Any

    @property
    def tensors(self) -> tuple[Any, ...]:
        """What was allocated."""
        return (self.keys, self.values)


class GroupedAttention:
    """Multi-head, grouped-query and multi-query attention.

    Args:
        mixer: the layer's heads.
        hidden: width of the hidden state.
        make: makes the weights.
        vectors: the layer's vectors by name.
    """

    def __init__(self, mixer: Attention, hidden: int, make: WeightMaker, vectors: Mapping[str, Any]) -> None:
        self.mixer = mixer
        self.vectors = vectors
        self.window = mixer.window if isinstance(mixer, Sliding) else None
        self.chunk = mixer.chunk if isinstance(mixer, Chunked) else None
        queries = mixer.heads * (mixer.head_dim + mixer.output_gate)
        self.widths = (queries, mixer.kv_heads * mixer.head_dim, mixer.kv_heads * mixer.value_dim)
        bias = vectors.get("qkv_bias")
        self.project: Linear = make.linear(hidden, sum(self.widths), bias)
        self.output: Linear = make.linear(mixer.heads * mixer.value_dim, hidden, vectors.get("output_bias"))

    def new_cache(self, batch: int, tokens: int, dtype: Any, device: str) -> HeadsCache:
        """Return empty places for the tokens that the layer keeps of so many."""
        mixer = self.mixer
        places = min(tokens, self.window or self.chunk or tokens)
        keys = torch.empty(batch, mixer.kv_heads, places, mixer.head_dim, dtype=dtype, device=device)
        values = torch.empty(batch, mixer.kv_heads, places, mixer.value_dim, dtype=dtype, device=device)
        return HeadsCache(keys=keys, values=values)

    def __call__(self, hidden: Any, cache: HeadsCache, run: Pass) -> Any:
        """Return the mixed hidden states of new tokens (sequences x tokens x width), and append their entries."""
        mixer = self.mixer
        queries, keys, values = self.project(hidden).split(self.widths, dim=-1)
        run.projected += hidden.shape[0] * hidden.shape[1]
        gate = None
        if mixer.output_gate:
            queries, gate = queries.unflatten(-1, (mixer.heads, -1)).split((mixer.head_dim, mixer.output_gate), dim=-1)
            queries = queries.flatten(-2)
        if "query_norm" in self.vectors:
            queries = normalised(queries, self.vectors["query_norm"])
            keys = normalised(keys, self.vectors["key_norm"])
        queries = run.rotate(_heads(queries, mixer.heads))
        keys, values = run.rotate(_heads(keys, mixer.kv_heads)), _heads(values, mixer.kv_heads)
        read = self._read(queries, keys, values, cache, run)
        if gate is not None:
            read = (read.unflatten(-1, (mixer.heads, -1)) * torch.sigmoid(gate)).flatten(-2)
        return self.output(read)

    def _read(self, queries: Any, keys: Any, values: Any, cache: HeadsCache, run: Pass) -> Any:
        scoring: dict[str, Any] = {"scale": 1 / math.sqrt(self.mixer.head_dim), "sinks": self.vectors.get("sinks")}
        places = cache.keys.shape[2]
        if run.tokens == 1:
            place = run.start % places
            cache.keys[:, :, place], cache.values[:, :, place] = keys[:, :, 0], values[:, :, 0]
            held = place + 1 if self.chunk else min(run.end, places)
            return attend(queries, cache.keys[:, :, :held], cache.values[:, :, :held], **scoring)
        new = torch.arange(run.start, run.end, device=queries.device)
        if run.end <= places:
            cache.keys[:, :, run.start : run.end], cache.values[:, :, run.start : run.end] = keys, values
            entries = torch.arange(run.end, device=queries.device)
            mask = causal_mask(new, entries, window=self.window, chunk=self.chunk)
            return attend(queries, cache.keys[:, :, : run.end], cache.values[:, :, : run.end], mask, **scoring)
        held = min(run.start, places)
        kept = torch.arange(held, device=queries.device)
        kept = run.start - 1 - (run.start - 1 - kept) % places
        mask = causal_mask(new, torch.cat((kept, new)), window=self.window, chunk=self.chunk)
        seen_keys = torch.cat((cache.keys[:, :, :held], keys), dim=2)
        seen_values = torch.cat((cache.values[:, :, :held], values), dim=2)
        last = new[-places:]
        cache.keys[:, :, last % places] = keys[:, :, -places:]
        cache.values[:, :, last % places] = values[:, :, -places:]
        return attend(queries, seen_keys, seen_values, mask, **scoring)


def _heads(vectors: Any, heads: int) -> Any:
    """Return sequences x heads x tokens x width of sequences x tokens x (heads * width)."""
    return vectors.unflatten(-1, (heads, -1)).transpose(1, 2)
