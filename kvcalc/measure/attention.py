"""Attention over a preallocated cache: grouped heads, over everything, a window or a chunk; rotary positions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kvcalc.core.model import Chunked, Sliding
from kvcalc.measure.kernels import Plain, causal_mask, heads_apart, normalised

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.model import Attention
    from kvcalc.measure.library import Device
    from kvcalc.measure.weights import Linear, WeightMaker

__all__ = ["GroupedAttention", "HeadsCache", "Pass", "Reading"]

_ROTARY_BASE = 10_000.0


@dataclass(slots=True, kw_only=True)
class Pass:
    """One forward pass: where its new tokens stand, and what it notes down.

    Args:
        start: position of the first new token: tokens in the cache.
        tokens: new tokens of each sequence.
        device: where it runs.
        position: the same as ``start``, as a number on the device; where it is given, ``start`` is not looked at, so
            that a graph of the pass runs at any position.
        kernels: the variant of the layers' small operations.
        rotates: whether positions are rotary (else they were added to the embeddings).
        touched: for each mixture, the experts that were used; filled only where the list is given.
        projected: tokens whose keys and values were projected, over all layers.
    """

    start: int
    tokens: int
    device: Device
    position: Any = None
    kernels: Plain = field(default_factory=Plain)
    rotates: bool = True
    touched: list[int] | None = None
    projected: int = 0
    _shared: dict[object, Any] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Tokens in the cache after the pass."""
        return self.start + self.tokens

    @property
    def on_device(self) -> bool:
        """Whether the position stands on the device."""
        return self.position is not None

    @property
    def positions(self) -> Any:
        """Positions of the new tokens, on the device."""
        if "positions" not in self._shared:
            if self.on_device:
                self._shared["positions"] = self.position + torch.arange(self.tokens, device=self.device.kind)
            else:
                self._shared["positions"] = torch.arange(self.start, self.end, device=self.device.kind)
        return self._shared["positions"]

    def slots(self, places: int) -> Any:
        """Return the slots of the new tokens' entries in a cache of so many places that are used in turn."""
        if ("slots", places) not in self._shared:
            self._shared["slots", places] = self.positions % places
        return self._shared["slots", places]

    def mask(self, places: int, *, window: int | None = None, chunk: int | None = None) -> Any:
        """Return the places that each new token sees (tokens x places), once the new entries are in the cache."""
        key = ("mask", places, window, chunk)
        if key not in self._shared:
            last = self.positions[-1]
            entries = last - (last - torch.arange(places, device=self.device.kind)) % places
            self._shared[key] = causal_mask(self.positions, entries, window=window, chunk=chunk) & (entries >= 0)
        return self._shared[key]

    def prompt_mask(self, *, window: int | None = None, chunk: int | None = None) -> Any:
        """Return the tokens of the sequence so far that each new token sees (tokens x entries)."""
        key = ("prompt", window, chunk)
        if key not in self._shared:
            entries = torch.arange(self.end, device=self.device.kind)
            self._shared[key] = causal_mask(self.positions, entries, window=window, chunk=chunk)
        return self._shared[key]

    def angles(self, width: int, dtype: Any) -> tuple[Any, Any]:
        """Cosines and sines of the new tokens' positions (tokens x half the width), for vectors of a width."""
        key = ("angles", width)
        if key not in self._shared:
            exponents = torch.arange(0, width, 2, device=self.device.kind, dtype=torch.float32) / width
            angles = self.positions.float()[:, None] * _ROTARY_BASE**-exponents
            self._shared[key] = (angles.cos().to(dtype), angles.sin().to(dtype))
        pair: tuple[Any, Any] = self._shared[key]
        return pair

    def rotate(self, heads: Any) -> Any:
        """Turn vectors (… x tokens x width) by their positions (rotary embedding, halves paired)."""
        if not self.rotates:
            return heads
        cos, sin = self.angles(heads.shape[-1], heads.dtype)
        first, second = heads.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The part of its cache that a layer's attention reads, and the weights of each token.

    Args:
        scale: factor of the scores.
        window: tokens that a window lets a token see, itself included.
        chunk: tokens of a chunk, which a token sees its own of.
        sinks: for each head a score that reads nothing.
        device: where it runs.
    """

    scale: float
    window: int | None
    chunk: int | None
    sinks: Any
    device: Device


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsCache:
    """Keys and values of one layer: sequences x KV heads x places x width.

    A window's or a chunk's places are used in turn: the token at position p stands in place p modulo their number.
    """

    keys: Any
    values: Any

    @property
    def tensors(self) -> tuple[Any, ...]:
        """Return the allocated tensors."""
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
        """Return places, all zero, for the tokens that the layer keeps of so many."""
        mixer = self.mixer
        places = min(tokens, self.window or self.chunk or tokens)
        keys = torch.zeros(batch, mixer.kv_heads, places, mixer.head_dim, dtype=dtype, device=device)
        values = torch.zeros(batch, mixer.kv_heads, places, mixer.value_dim, dtype=dtype, device=device)
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
        reading = Reading(
            scale=1 / math.sqrt(mixer.head_dim),
            window=self.window,
            chunk=self.chunk,
            sinks=self.vectors.get("sinks"),
            device=run.device,
        )
        if run.tokens == 1 or run.on_device:
            turned = run.kernels.store(queries, keys, values, cache, run)
            read = run.kernels.read(turned, cache, run, reading)
        else:
            queries = run.rotate(heads_apart(queries, mixer.heads))
            keys, values = run.rotate(heads_apart(keys, mixer.kv_heads)), heads_apart(values, mixer.kv_heads)
            read = self._read_prompt(queries, keys, values, cache, run, reading)
        if gate is not None:
            read = (read.unflatten(-1, (mixer.heads, -1)) * torch.sigmoid(gate)).flatten(-2)
        return self.output(read)

    def _read_prompt(self, queries: Any, keys: Any, values: Any, cache: HeadsCache, run: Pass, reading: Reading) -> Any:
        places = cache.keys.shape[2]
        new = run.positions
        if run.end <= places:
            cache.keys[:, :, run.start : run.end], cache.values[:, :, run.start : run.end] = keys, values
            mask = run.prompt_mask(window=self.window, chunk=self.chunk)
            seen = cache.keys[:, :, : run.end], cache.values[:, :, : run.end]
            return run.kernels.read_prompt(queries, *seen, mask, reading)
        before = min(run.start, places)
        kept = torch.arange(before, device=queries.device)
        kept = run.start - 1 - (run.start - 1 - kept) % places
        mask = causal_mask(new, torch.cat((kept, new)), window=self.window, chunk=self.chunk)
        seen = (
            torch.cat((cache.keys[:, :, :before], keys), dim=2),
            torch.cat((cache.values[:, :, :before], values), dim=2),
        )
        last = new[-places:]
        cache.keys[:, :, last % places] = keys[:, :, -places:]
        cache.values[:, :, last % places] = values[:, :, -places:]
        return run.kernels.read_prompt(queries, *seen, mask, reading)
