"""Capacity of the memory that vLLM gives its cache: blocks, tokens, requests at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.records import dataclass
from kvcalc.engines.vllm.groups import layout, stage_layouts
from kvcalc.engines.vllm.releases import (
    FIRST_BY_CONCURRENCY,
    FIRST_WITH_NULL_BLOCK,
    VERSION,
    checks_all_layers,
    known_release,
    printed_tokens,
    since,
)

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats
    from kvcalc.engines.vllm.groups import Layout
    from kvcalc.engines.vllm.options import VllmOptions

__all__ = ["Capacity", "capacity", "longest_context", "memory_to_start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Capacity of a rank's cache.

    Args:
        num_blocks: blocks in the pool, the null block included.
        kv_tokens: the tokens that the engine prints as the size of its cache.
        max_concurrency: requests of the longest length that the pool holds, unrounded.
        starts: whether the engine starts; it refuses where one request and the null block do not fit.
    """

    num_blocks: int
    kv_tokens: int
    max_concurrency: float
    starts: bool


def capacity(layout: Layout, *, kv_memory_bytes: int, version: str = VERSION) -> Capacity:
    """Return the capacity of the memory of one rank's cache.

    num_blocks = memory // bytes of a block; concurrency = num_blocks / blocks of one request. The engine starts if one
    request fits beside the null block. Only the tokens printed follow ``version``: the layout is that of 0.32.

    Args:
        layout: the layout.
        kv_memory_bytes: bytes the engine gives the cache of one rank.
        version: the version whose printed tokens are asked for.

    Raises:
        InputError: a negative memory, or not a version.

    Source: vLLM 0.32, kv_cache_utils.get_max_concurrency_for_kv_cache_config and _check_enough_kv_cache_memory.
    """
    if kv_memory_bytes < 0:
        raise InputError(f"the cache cannot have {kv_memory_bytes} bytes")
    num_blocks = kv_memory_bytes // layout.bytes_per_block
    by_concurrency = known_release(version) >= FIRST_BY_CONCURRENCY
    return Capacity(
        num_blocks=num_blocks,
        kv_tokens=printed_tokens(layout, num_blocks, by_concurrency=by_concurrency),
        max_concurrency=num_blocks / layout.needed_blocks,
        starts=layout.start_bytes <= kv_memory_bytes,
    )


def memory_to_start(
    model: ModelProfile, formats: Formats, options: VllmOptions, *, tensor: int = 1, pipeline: int = 1
) -> int:
    """Return the bytes for a rank's cache without which the engine refuses to start: one request of the longest length.

    Each pipeline rank is asked for its own layers and, from 0.30 on, for the null block as well. 0.14 and 0.15 asked
    every rank for the cache of all layers.

    Args:
        model: the model.
        formats: formats of keys, values and states.
        options: the engine's options, its version among them.
        tensor: tensor-parallel ranks.
        pipeline: pipeline stages.

    Raises:
        InputError: more stages than layers.
        UnsupportedError: a layer whose cache in vLLM is not modelled.

    Source: vLLM 0.14 to 0.32, kv_cache_utils.get_kv_cache_configs and _check_enough_kv_cache_memory.
    """
    stages = 1 if checks_all_layers(options.version) else pipeline
    placed = stage_layouts(model, formats, options, tensor=tensor, pipeline=stages)
    if since(options.version, FIRST_WITH_NULL_BLOCK):
        return max(stage.start_bytes for stage in placed)
    return max(stage.needed_bytes for stage in placed)


def longest_context(
    model: ModelProfile,
    formats: Formats,
    options: VllmOptions,
    *,
    kv_memory_bytes: int,
    tensor: int = 1,
    null_block: bool = True,
) -> int:
    """Return the largest ``max_model_len``, up to the one in the options, whose request fits; 0 if none.

    Args:
        model: the model.
        formats: formats of keys, values and states.
        options: the engine's options; their ``max_model_len`` is the most that is tried.
        kv_memory_bytes: bytes the engine gives the cache of one rank.
        tensor: tensor-parallel ranks.
        null_block: whether the null block must fit beside it, as it must for the engine to start.

    Source: vLLM 0.32, kv_cache_utils.estimate_max_model_len (a binary search, as a length decides its own layout).
    """

    def fit(length: int) -> bool:
        tried = layout(model, formats, replace(options, max_model_len=length), tensor=tensor)
        return (tried.start_bytes if null_block else tried.needed_bytes) <= kv_memory_bytes

    fits, limit = 0, options.max_model_len
    while fits < limit:
        middle = (fits + limit + 1) // 2
        if fit(middle):
            fits = middle
        else:
            limit = middle - 1
    return fits
