"""Multi-head latent attention with the up-projections absorbed: every pass works on the cached latent vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kvcalc.measure.kernels import attend, normalised

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.model import Latent
    from kvcalc.measure.attention import Pass
    from kvcalc.measure.weights import WeightMaker

__all__ = ["LatentAttention", "LatentCache"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentCache:
    """One vector a token, shared by the heads: sequences x places x (rank + rotary width)."""

    entries: Any

    @property
    def tensors(self) -> tuple[Any, ...]:
        """Return the allocated tensors."""
        return (self.entries,)


class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).

    Args:
        mixer: the layer's heads and widths.
        hidden: width of the hidden state.
        make: makes the weights.
        vectors: the layer's vectors by name.
    """

    def __init__(self, mixer: Latent, hidden: int, make: WeightMaker, vectors: Mapping[str, Any]) -> None:
        self.mixer, self.vectors = mixer, vectors
        heads, rank = mixer.heads, mixer.kv_lora_rank
        queries = heads * (mixer.nope_dim + mixer.rope_dim)
        self.query_down = None if mixer.q_lora_rank is None else make.linear(hidden, mixer.q_lora_rank)
        self.query = make.linear(mixer.q_lora_rank or hidden, queries)
        self.latent = make.linear(hidden, rank + mixer.rope_dim)
        self.key_up = make.tensor(heads, mixer.nope_dim, rank, scale=1 / math.sqrt(rank))
        self.value_up = make.tensor(heads, rank, mixer.value_head_dim, scale=1 / math.sqrt(rank))
        self.gate = make.linear(hidden, mixer.output_gate) if mixer.output_gate else None
        self.output = make.linear(heads * mixer.value_head_dim, hidden)

    def new_cache(self, batch: int, tokens: int, dtype: Any, device: str) -> LatentCache:
        """Return places, all zero, for so many tokens."""
        width = self.mixer.kv_lora_rank + self.mixer.rope_dim
        return LatentCache(entries=torch.zeros(batch, tokens, width, dtype=dtype, device=device))

    def __call__(self, hidden: Any, cache: LatentCache, run: Pass) -> Any:
        """Return the mixed hidden states of new tokens (sequences x tokens x width), and append their entries."""
        mixer, rank = self.mixer, self.mixer.kv_lora_rank
        entries = self.latent(hidden)
        run.projected += hidden.shape[0] * hidden.shape[1]
        compressed = normalised(entries[..., :rank], self.vectors.get("latent_norm"))
        self._store(compressed, run.rotate(entries[..., rank:]), cache, run)
        inputs = hidden
        if self.query_down is not None:
            inputs = normalised(self.query_down(hidden), self.vectors.get("query_latent_norm"))
        queries = self.query(inputs).unflatten(-1, (mixer.heads, -1)).transpose(1, 2)
        plain, rotary = queries.split((mixer.nope_dim, mixer.rope_dim), dim=-1)
        queries = torch.cat((torch.matmul(plain, self.key_up), run.rotate(rotary)), dim=-1)
        seen, mask = self._seen(cache, run)
        scale = 1 / math.sqrt(mixer.nope_dim + mixer.rope_dim)
        read = attend(queries, seen, seen[..., :rank], mask, scale=scale)
        read = read.unflatten(-1, (mixer.heads, rank)).transpose(1, 2)
        values = torch.matmul(read, self.value_up).transpose(1, 2).flatten(2)
        if self.gate is not None:
            gate = self.gate(hidden)
            values = values * torch.sigmoid(gate.repeat_interleave(values.shape[-1] // gate.shape[-1], dim=-1))
        return self.output(values)

    def _store(self, compressed: Any, rotary: Any, cache: LatentCache, run: Pass) -> None:
        if run.on_device:
            cache.entries.index_copy_(1, run.positions, torch.cat((compressed, rotary), dim=-1))
            return
        rank = self.mixer.kv_lora_rank
        cache.entries[:, run.start : run.end, :rank] = compressed
        cache.entries[:, run.start : run.end, rank:] = rotary

    def _seen(self, cache: LatentCache, run: Pass) -> tuple[Any, Any]:
        """The entries that a pass attends to (sequences x 1 x entries x width), and a mask where it takes one."""
        if run.on_device:
            return cache.entries[:, None], run.mask(cache.entries.shape[1])
        mask = run.prompt_mask() if run.tokens > 1 else None
        return cache.entries[:, None, : run.end], mask
