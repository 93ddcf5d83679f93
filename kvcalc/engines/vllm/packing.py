"""vLLM's groups of layers where blocks are outermost: pages of several sizes stand side by side in a block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.engines.vllm.pages import Spec

__all__ = ["packed_groups"]


def packed_groups(specs: Sequence[Spec]) -> list[list[Spec]]:
    """Return the specs of each group.

    Layers of a family and block form a bucket. One with as many layers of each page size repeats a pattern; the longest
    of those with several sizes must stay whole, and the others are cut to so many repeats, or more where that wastes
    less. A bucket that repeats nothing stays whole. Rings, and windows where no pattern must stay whole, are cut so as
    not to widen the block that the others need.

    Source: vLLM 0.33, ``kv_cache_planning._get_packed_kv_cache_groups``.
    """
    families: dict[tuple[object, ...], list[Spec]] = {}
    for spec in specs:
        families.setdefault((spec.family, spec.block_size), []).append(spec)
    buckets = [_by_page(members) for members in families.values()]
    min_repeats = max((_repeats(pages) for pages in buckets if len(pages) > 1), default=0)
    size = (
        _least_wasted([_repeats(pages) for pages in buckets if _repeats(pages)], min_repeats)
        if min_repeats
        else len(specs)
    )
    counts = [max(1, ceil_div(_repeats(pages), size)) for pages in buckets]
    narrow = [pages[0][0].kind == "ring" or (not min_repeats and pages[0][0].kind == "sliding") for pages in buckets]
    anchor = max(
        _widest(pages, sum(map(len, pages)) if cut else parts)
        for pages, cut, parts in zip(buckets, narrow, counts, strict=True)
    )
    for index, pages in enumerate(buckets):
        if narrow[index]:
            fitting = max(1, anchor // pages[0][0].page_bytes)
            counts[index] = max(counts[index], ceil_div(sum(map(len, pages)), fitting))
    return [part for pages, parts in zip(buckets, counts, strict=True) for part in _dealt(pages, parts)]


def _widest(pages: Sequence[Sequence[Spec]], parts: int) -> int:
    """Return the bytes of the widest of the parts that a bucket is dealt to."""
    return sum(ceil_div(len(layers), parts) * layers[0].page_bytes for layers in pages)


def _repeats(pages: Sequence[Sequence[Spec]]) -> int:
    """Return the layers of each page size; 0 where some have more."""
    counts = {len(layers) for layers in pages}
    return counts.pop() if len(counts) == 1 else 0


def _dealt(pages: Sequence[Sequence[Spec]], parts: int) -> list[list[Spec]]:
    """Return a bucket dealt round robin, a layer of each page size at a time."""
    return [[spec for layers in pages for spec in layers[start::parts]] for start in range(parts)]


def _by_page(members: Sequence[Spec]) -> list[list[Spec]]:
    pages: dict[int, list[Spec]] = {}
    for spec in members:
        pages.setdefault(spec.page_bytes, []).append(spec)
    return list(pages.values())


def _least_wasted(counts: Sequence[int], minimum: int) -> int:
    """Return the size, of at least ``minimum``, to whose multiples the counts are rounded up with the least added.

    The larger one, of several.

    Source: vLLM 0.33, ``kv_cache_planning._approximate_gcd``.

    >>> _least_wasted([43, 21, 20], 21), _least_wasted([5, 5], 3)
    (22, 5)
    """
    return min(range(minimum, max(counts) + 1), key=lambda size: (sum(-count % size for count in counts), -size))
