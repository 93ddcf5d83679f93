"""What the demonstrations of ``kvcalc demo`` show: small computations, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DecoderShape", "KvCacheReport", "KvCacheStep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """The sizes of a small causal decoder.

    Args:
        layers: layers.
        heads: query heads.
        kv_heads: key-value heads; they divide ``heads``.
        head_dim: width of a head.
        vocabulary: tokens there are.
    """

    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    vocabulary: int = 50

    @property
    def hidden_size(self) -> int:
        """Width of the hidden state."""
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheStep:
    """The pass that makes one token, without and with the cache.

    Args:
        place: of the token made, counted from 1.
        phase: ``prefill`` or ``decode``, as the cached run does it.
        past_tokens: tokens of a sequence in the cache before it.
        tokens: the token made, for each sequence of the batch.
        projections_without: tokens whose keys and values a layer computes, without a cache.
        projections_with: the same with a cache.
        shapes: shape of each tensor of a layer in the cached pass.
        shapes_without: shape of the same tensors where everything is computed again.
        difference: largest difference between the last token's attention outputs of the two runs, over all layers.
    """

    place: int
    phase: str
    past_tokens: int
    tokens: tuple[int, ...]
    projections_without: int
    projections_with: int
    shapes: Mapping[str, tuple[int, ...]]
    shapes_without: Mapping[str, tuple[int, ...]]
    difference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheReport:
    """Generation without and with a cache of keys and values.

    A projection is one token's key and value in one layer, all its heads; the sums below are those of one layer and one
    sequence. The last token made is never projected: nothing follows that would attend to it.

    Args:
        shape: the decoder.
        batch: sequences.
        prompt_tokens: tokens of each prompt.
        output_tokens: tokens made after it.
        seed: of weights and prompts.
        projections_without: without a cache, sum over i < n of (prompt + i).
        projections_with: with a cache, prompt + n - 1.
        same_tokens: whether both runs made the same tokens.
        difference: largest difference of attention outputs.
        by_row_difference: the same where both runs multiply row by row, in the same order.
        both_ways_difference: the same for a decoder of at least two layers without the causal mask, whose old keys and
            values would have to change with every new token.
        both_ways_first_wrong: place of the first token that the unmasked decoder gets wrong with a cache, if any.
        cache_bytes: bytes of keys and values that the cached run holds at the end, as float64.
        steps: each pass.
    """

    schema: str = "kvcalc.demo_kv_cache/1"
    shape: DecoderShape
    batch: int
    prompt_tokens: int
    output_tokens: int
    seed: int
    projections_without: int
    projections_with: int
    same_tokens: bool
    difference: float
    by_row_difference: float
    both_ways_difference: float
    both_ways_first_wrong: int | None
    cache_bytes: int
    steps: tuple[KvCacheStep, ...] = ()
