"""What fits into the memory that vLLM gives its cache: blocks, tokens, requests at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.engines.vllm.groups import layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.model import Block, ModelProfile
    from kvcalc.core.workload import Formats
    from kvcalc.engines.vllm.groups import Layout
    from kvcalc.engines.vllm.options import VllmOptions

__all__ = ["VERSION", "Capacity", "capacity", "longest_context", "needed_bytes"]

VERSION = "0.32"

# The last version known to print blocks, and the first known to print concurrency times length.
_LAST_BY_BLOCKS = (0, 20)
_FIRST_BY_CONCURRENCY = (0, 23)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a rank's cache holds.

    Args:
        num_blocks: blocks in the pool, the null block included.
        kv_tokens: the tokens that the engine prints as the size of its cache.
        max_concurrency: requests of the longest length that the pool holds, unrounded.
        needed_bytes: bytes of one request of the longest length.
        bytes_reserved: bytes of the pool.
        starts: whether the engine starts; it refuses where one request and the null block do not fit.
    """

    num_blocks: int
    kv_tokens: int
    max_concurrency: float
    needed_bytes: int
    bytes_reserved: int
    starts: bool


def capacity(layout: Layout, *, kv_memory_bytes: int, version: str = VERSION) -> Capacity:
    """Return what fits into the memory of one rank's cache.

    num_blocks = memory // bytes of a block; concurrency = num_blocks / blocks of one request. The engine starts if one
    request fits beside the null block. The tokens printed are floor(concurrency * max_model_len); up to 0.20 they
    were num_blocks // groups * block_size. Only that figure follows ``version``: the layout is that of 0.32.

    Args:
        layout: the layout.
        kv_memory_bytes: bytes the engine gives the cache of one rank.
        version: the version whose printed tokens are asked for.

    Raises:
        InputError: a negative memory, or a version whose rule is not known (0.21 and 0.22, unless both agree).

    Source: vLLM 0.32, kv_cache_utils.get_max_concurrency_for_kv_cache_config and _check_enough_kv_cache_memory.
    """
    if kv_memory_bytes < 0:
        raise InputError(f"the cache cannot have {kv_memory_bytes} bytes")
    num_blocks = kv_memory_bytes // layout.bytes_per_block
    concurrency = num_blocks / layout.needed_blocks
    return Capacity(
        num_blocks=num_blocks,
        kv_tokens=_printed_tokens(layout, num_blocks, concurrency, version=version),
        max_concurrency=concurrency,
        needed_bytes=layout.needed_bytes,
        bytes_reserved=num_blocks * layout.bytes_per_block,
        starts=layout.needed_bytes <= kv_memory_bytes - layout.bytes_per_block,
    )


def _printed_tokens(layout: Layout, num_blocks: int, concurrency: float, *, version: str) -> int:
    release = _release(version)
    by_blocks = num_blocks // len(layout.groups) * layout.block_size
    # in floating point, as the engine does it
    by_concurrency = int(concurrency * layout.max_model_len)
    if release >= _FIRST_BY_CONCURRENCY:
        return by_concurrency
    if release <= _LAST_BY_BLOCKS or by_blocks == by_concurrency:
        return by_blocks
    raise InputError(
        f"it is not known whether vLLM {version} prints {by_blocks} or {by_concurrency} tokens",
        hint="versions up to 0.20 count blocks, versions from 0.23 on multiply the concurrency by the length",
    )


def _release(version: str) -> tuple[int, int]:
    """Return major and minor version of a text such as ``0.20.1rc1``."""
    major, _, rest = version.strip().removeprefix("v").partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        raise InputError(f"{version!r} is not a version of vLLM", hint="for example 0.32 or 0.19.0")
    return int(major), int(minor)


def needed_bytes(
    model: ModelProfile,
    formats: Formats,
    options: VllmOptions,
    *,
    tensor: int = 1,
    blocks: Sequence[Block] | None = None,
) -> int:
    """Return the bytes of one rank's blocks for one request of ``options.max_model_len`` tokens.

    The engine starts with this much and one block more. Arguments and errors are those of `layout`.

    Source: vLLM 0.32, kv_cache_utils._check_enough_kv_cache_memory.
    """
    return layout(model, formats, options, tensor=tensor, blocks=blocks).needed_bytes


def longest_context(
    model: ModelProfile,
    formats: Formats,
    options: VllmOptions,
    *,
    kv_memory_bytes: int,
    tensor: int = 1,
    blocks: Sequence[Block] | None = None,
) -> int:
    """Return the largest ``max_model_len``, up to the one in the options, with which the engine starts; 0 if none.

    Args:
        model: the model.
        formats: formats of keys, values and states.
        options: the engine's options; their ``max_model_len`` is the most that is tried.
        kv_memory_bytes: bytes the engine gives the cache of one rank.
        tensor: tensor-parallel ranks.
        blocks: the layers of one pipeline stage; all layers where left out.

    Source: vLLM 0.32, kv_cache_utils.estimate_max_model_len (a binary search, as a length decides its own layout).
    """

    def starts(length: int) -> bool:
        tried = layout(model, formats, replace(options, max_model_len=length), tensor=tensor, blocks=blocks)
        return capacity(tried, kv_memory_bytes=kv_memory_bytes).starts

    fits, most = 0, options.max_model_len
    while fits < most:
        middle = (fits + most + 1) // 2
        if starts(middle):
            fits = middle
        else:
            most = middle - 1
    return fits
